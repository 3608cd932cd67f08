"""Linear recurrences: equations token by token, checks of every form, random lanes for kernels and their proof."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from hybridlm.families import RecurrenceInputs, RecurrenceOutputs
from ir_passes import IsolationError, Lane, LaneContract, Note, Pool, SlotMap, prove_isolation
from models import Devices
from models.ops.float32 import full_einsum
from models.ops.kernels import Kernel


def scanned(token: Any, inputs: RecurrenceInputs, *gates: Array) -> RecurrenceOutputs:
    """Run an equation of one token: state, (q, k, v, g, gates, real) -> state, output."""
    per_token = (inputs.query, inputs.key, inputs.value, inputs.log_decay, *gates, inputs.valid)
    state = jnp.where(inputs.fresh[:, None, None, None], 0.0, inputs.state)
    state, out = lax.scan(token, state, tuple(jnp.moveaxis(x, 1, 0) for x in per_token))
    return RecurrenceOutputs(jnp.moveaxis(out, 0, 1), state)


def delta_rule_reference(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run token by token, as the equation is written."""

    def token(state: Array, operands: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, b, real = operands
        decayed = jnp.exp(g).reshape((*g.shape[:2], 1, -1)) * state
        delta = b[:, :, None] * (v - full_einsum("nhvk,nhk->nhv", decayed, k))
        updated = decayed + delta[:, :, :, None] * k[:, :, None, :]
        out = full_einsum("nhvk,nhk->nhv", updated, q)
        real = real[:, None, None]
        return jnp.where(real[..., None], updated, state), jnp.where(real, out, 0.0)

    assert inputs.beta is not None
    return scanned(token, inputs, inputs.beta)


def ssd_reference(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run token by token, as the equation is written."""
    repeats = inputs.value.shape[2] // inputs.query.shape[2]

    def token(state: Array, operands: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, real = operands
        q, k = jnp.repeat(q, repeats, axis=1), jnp.repeat(k, repeats, axis=1)
        updated = jnp.exp(g)[:, :, None, None] * state + v[:, :, :, None] * k[:, :, None, :]
        out = full_einsum("nhvk,nhk->nhv", updated, q)
        real = real[:, None, None]
        return jnp.where(real[..., None], updated, state), jnp.where(real, out, 0.0)

    return scanned(token, inputs)


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


def on_arrays(
    form: Callable[..., RecurrenceOutputs], platform: str = "cpu", **options: Any
) -> Callable[..., RecurrenceOutputs]:
    """Return `form` of query, key, value, log-decay, beta, state, valid and fresh."""

    def run(query: Any, key: Any, value: Any, log_decay: Any, *rest: Any) -> RecurrenceOutputs:
        *beta, state, valid, fresh = rest
        return form(
            RecurrenceInputs(
                query, key, value, log_decay, state, valid, fresh, *beta, devices=Devices(platform=platform)
            ),
            **options,
        )

    return run
