"""Random lanes for kernels of recurrences, the comparison with the plain forms, and the proof of a step with one."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from recurrence_equations import delta_rule_reference, ssd_reference

from ir_passes import Lane, LaneContract, Pool
from ir_passes.contract.statements import Note
from ir_passes.proof.lane_proof import prove_isolation
from models.ops.kernels import Kernel
from models.ops.recurrences.recurrence import RecurrenceInputs

LANES, HEADS = 5, 6
FORMS = ("head", "channel", "ssd", "ssd in groups")


def inputs(form: str, values: int, keys: int, seed: int = 0, heads: int = HEADS, **changes: Any) -> RecurrenceInputs:
    """Draw lanes of one token: one idle, one fresh; what is not used is NaN."""
    rng = np.random.default_rng(seed)
    key_heads = 2 if form == "ssd in groups" else heads

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    query, key = draw(LANES, 1, key_heads, keys), draw(LANES, 1, key_heads, keys)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    decay = -np.abs(draw(LANES, 1, heads, keys) if form == "channel" else draw(LANES, 1, heads))
    beta = None if form.startswith("ssd") else rng.uniform(0.1, 0.9, (LANES, 1, heads)).astype(np.float32)
    valid, fresh = np.ones((LANES, 1), bool), np.zeros(LANES, bool)
    valid[1], fresh[3] = False, True
    state = draw(LANES, heads, values, keys)
    state[3] = np.nan
    for one in (query, key, decay):
        one[1] = np.nan
    value = draw(LANES, 1, heads, values)
    names = "query", "key", "value", "log_decay", "state", "valid", "fresh"
    arrays = dict(zip(names, map(jnp.asarray, (query, key, value, decay, state, valid, fresh)), strict=True))
    return RecurrenceInputs(**arrays, beta=None if beta is None else jnp.asarray(beta), **changes)


def several(form: str, values: int = 8, keys: int = 4, tokens: int = 3) -> RecurrenceInputs:
    """Random lanes of several tokens: one idle, one fresh, one of a single token; what is not used is NaN."""
    parts = [inputs(form, values, keys, seed=seed) for seed in range(tokens)]
    valid = np.ones((LANES, tokens), bool)
    valid[1], valid[4, 1:] = False, False
    names = [name for name in ("query", "key", "value", "log_decay", "beta") if getattr(parts[0], name) is not None]
    arrays = {name: np.concatenate([np.asarray(getattr(one, name)) for one in parts], axis=1) for name in names}
    for one in arrays.values():
        one[~valid] = np.nan
    return replace(parts[0], valid=jnp.asarray(valid), **{name: jnp.asarray(one) for name, one in arrays.items()})


def zero_padding(given: RecurrenceInputs) -> RecurrenceInputs:
    """Return the same lanes with zeros in place of what padding tokens hold."""
    names = [name for name in ("query", "key", "value", "log_decay", "beta") if getattr(given, name) is not None]

    def zeros(x: Any) -> Any:
        return jnp.where(given.valid.reshape(given.valid.shape + (1,) * (x.ndim - 2)), x, 0.0)

    return replace(given, **{name: zeros(getattr(given, name)) for name in names})


def check(form: str, given: RecurrenceInputs, found: Any) -> None:
    """Compare a kernel's results with those of the token by token form."""
    reference = ssd_reference if form.startswith("ssd") else delta_rule_reference
    for one, expected in zip(found, jax.jit(reference)(given), strict=True):
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-6)


def check_lanes_keep_their_bits(given: RecurrenceInputs, kernel: Callable[[RecurrenceInputs], Any]) -> None:
    """Check that idle lanes keep their state, that NaN in one lane or in all others reaches no lane, and each alone."""
    output, state = kernel(given)
    np.testing.assert_array_equal(state[1], given.state[1])
    assert not np.any(output[1])
    for lane in range(LANES):
        others = np.delete(np.arange(LANES), lane)
        for bad, kept in ((lane, others), (others, lane)):
            poisoned = replace(given, state=given.state.at[bad].set(jnp.nan), value=given.value.at[bad].set(jnp.nan))
            for found, expected in zip(kernel(poisoned), (output, state), strict=True):
                np.testing.assert_array_equal(found[kept], expected[kept])
        alone = jax.tree.map(operator.itemgetter(slice(lane, lane + 1)), given)
        for found, expected in zip(kernel(alone), (output, state), strict=True):
            np.testing.assert_array_equal(found[0], expected[lane])


def arguments(given: RecurrenceInputs) -> tuple[Any, Any, dict[str, Any]]:
    """Return the arguments of a step: state, lengths, and the other operands by name."""
    rest = {name: getattr(given, name) for name in ("query", "key", "value", "log_decay", "fresh", "beta")}
    return given.state, jnp.ones(len(given.state), jnp.int32), rest


def check_proof(kernel: Kernel, step: Callable[..., Any], args: tuple[Any, ...], *others: str) -> None:
    """Prove a step of `arguments`, with the kernel and the others of those names read, and no declaration."""
    state = Pool("rows", dims=("lane", "value_head", "value", "key"))
    contract = LaneContract((state, Lane(role="length"), Lane()), (Lane(), state))
    proof = prove_isolation(step, args, contract)
    read = [note.about.split()[0] for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert sorted(read) == sorted([kernel.name, *others])
    assert {"idle", "dimensions"} <= {one.id for one in proof.proved}
