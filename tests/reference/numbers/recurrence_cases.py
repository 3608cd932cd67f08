"""Random lanes for recurrence kernels, comparison with plain forms, and their proof."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recurrence_equations import delta_rule_reference, ssd_reference

from ir_passes import IsolationError, Lane, LaneContract, Pool, SlotMap
from ir_passes.contract.statements import Note
from ir_passes.proof.lane_proof import prove_isolation
from models.ops.kernels import Kernel
from models.ops.recurrences.recurrence import RecurrenceInputs

LANES, HEADS = 5, 6
FORMS = ("head", "channel", "ssd", "ssd in groups")


def inputs(form: str, values: int, keys: int, seed: int = 0, heads: int = HEADS, **changes: Any) -> RecurrenceInputs:
    """Draw one-token lanes, one idle and one fresh; unused values are NaN."""
    rng = np.random.default_rng(seed)
    key_heads = 2 if form == "ssd in groups" else heads
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    query, key = draw(LANES, 1, key_heads, keys), draw(LANES, 1, key_heads, keys)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    decay = -np.abs(draw(LANES, 1, heads, keys) if form == "channel" else draw(LANES, 1, heads))
    beta = None if form.startswith("ssd") else rng.uniform(0.1, 0.9, (LANES, 1, heads)).astype(np.float32)
    valid, fresh = np.ones((LANES, 1), bool), np.zeros(LANES, bool)
    valid[1], fresh[3] = False, True
    state = draw(LANES, heads, values, keys)
    state[3] = np.nan
    for item in (query, key, decay):
        item[1] = np.nan
    value = draw(LANES, 1, heads, values)
    names = "query", "key", "value", "log_decay", "state", "valid", "fresh"
    arrays = dict(zip(names, map(jnp.asarray, (query, key, value, decay, state, valid, fresh)), strict=True))
    return RecurrenceInputs(**arrays, beta=None if beta is None else jnp.asarray(beta), **changes)


def several(form: str, values: int = 8, keys: int = 4, tokens: int = 3) -> RecurrenceInputs:
    """Draw lanes of several tokens: idle, fresh, single; unused values are NaN."""
    parts = [inputs(form, values, keys, seed=seed) for seed in range(tokens)]
    valid = np.ones((LANES, tokens), bool)
    valid[1], valid[4, 1:] = False, False
    names = [name for name in ("query", "key", "value", "log_decay", "beta") if getattr(parts[0], name) is not None]
    arrays = {name: np.concatenate([np.asarray(getattr(part, name)) for part in parts], axis=1) for name in names}
    for array in arrays.values():
        array[~valid] = np.nan
    return replace(parts[0], valid=jnp.asarray(valid), **{name: jnp.asarray(item) for name, item in arrays.items()})


def zero_padding(inputs: RecurrenceInputs) -> RecurrenceInputs:
    """Return the lanes with zeros in padding tokens."""
    names = [name for name in ("query", "key", "value", "log_decay", "beta") if getattr(inputs, name) is not None]
    valid = np.asarray(inputs.valid)
    zeros = lambda x: jnp.asarray(np.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, np.float32(0)))
    return replace(inputs, **{name: zeros(getattr(inputs, name)) for name in names})


def check(form: str, recurrence_inputs: RecurrenceInputs, actual: Any) -> None:
    """Compare a kernel's results with the token-by-token form."""
    reference = ssd_reference if form.startswith("ssd") else delta_rule_reference
    for item, expected in zip(actual, jax.jit(reference)(recurrence_inputs), strict=True):
        np.testing.assert_allclose(item, expected, rtol=2e-5, atol=2e-6)


def check_lanes_keep_their_bits(
    inputs: RecurrenceInputs, kernel: Callable[[RecurrenceInputs], Any], values: Sequence[float] = (np.nan,)
) -> None:
    """Check that idle lanes keep state, lanes alone have equal bits, and `values` stay in their lane."""
    output, state = kernel(inputs)
    np.testing.assert_array_equal(state[1], inputs.state[1])
    assert not np.any(output[1])
    for lane in range(LANES):
        rest = np.delete(np.arange(LANES), lane)
        for (bad, saved), value in itertools.product(((lane, rest), (rest, lane)), values):
            state_array, value_array = np.array(inputs.state), np.array(inputs.value)
            state_array[bad] = value_array[bad] = value
            poisoned = replace(inputs, state=jnp.asarray(state_array), value=jnp.asarray(value_array))
            for actual, expected in zip(kernel(poisoned), (output, state), strict=True):
                np.testing.assert_array_equal(actual[saved], expected[saved])
        tree = jax.tree.map(lambda array, lane=lane: jnp.asarray(np.asarray(array)[lane : lane + 1]), inputs)
        for actual, expected in zip(kernel(tree), (output, state), strict=True):
            np.testing.assert_array_equal(actual[0], expected[lane])


def arguments(recurrence_inputs: RecurrenceInputs) -> tuple[Any, Any, dict[str, Any]]:
    """Return the arguments of a step: state, lengths, and the other operands by name."""
    rest = {name: getattr(recurrence_inputs, name) for name in ("query", "key", "value", "log_decay", "fresh", "beta")}
    return recurrence_inputs.state, jnp.ones(len(recurrence_inputs.state), jnp.int32), rest


STATE_DIMS = ("value_head", "value", "key")


def check_proof(
    kernel: Kernel, step: Callable[..., Any], args: tuple[Any, ...], *others: str, dims: Any = STATE_DIMS
) -> None:
    """Prove a step of `arguments` with its kernel and `others` read, without declarations."""
    state = Pool("rows", dims=("lane", *dims))
    contract = LaneContract((state, Lane(role="length"), Lane()), (Lane(), state))
    proof = prove_isolation(step, args, contract)
    read = [note.about.split()[0] for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert sorted(read) == sorted([kernel.name, *others])
    assert {"idle", "dimensions"} <= {certificate.id for certificate in proof.proved}


def check_proof_by_slot(
    kernel: Kernel, step: Callable[..., Any], args: tuple[Any, ...], *others: str, dims: Any = STATE_DIMS
) -> None:
    """Prove a step of `arguments` and slots; refuse the step with another lane's slots."""
    state, by_slot = Pool("rows", dims=("row", *dims)), SlotMap("rows", len(args[0]), null=False)
    contract = LaneContract((state, Lane(role="length"), Lane(), by_slot), (Lane(), state))
    proof = prove_isolation(step, args, contract)
    read = [note.about.split()[0] for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert sorted(read) == sorted([kernel.name, *others])
    assert {"idle", "frame", "dimensions"} <= {certificate.id for certificate in proof.proved}
    with pytest.raises(IsolationError):
        prove_isolation(lambda *args: step(*args[:-1], jnp.roll(args[-1], 1)), args, contract)
