"""The kernel for one token of a recurrence computes what the plain forms do, and keeps lanes apart."""

import operator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import Lane, LaneContract, Pool
from ir_passes.contract.statements import Note
from ir_passes.proof.lane_proof import prove_isolation
from models.ops.delta_rule import delta_rule, delta_rule_reference, delta_rule_step
from models.ops.recurrence import RecurrenceInputs
from models.ops.recurrent_step import KERNEL, MAX_KEY, MAX_TOKENS, recurrent_step
from models.ops.ssd import ssd, ssd_reference, ssd_step
from models.sharding.devices import Devices

LANES, HEADS = 5, 6
FORMS = ("head", "channel", "ssd", "ssd in groups")
SIZES = ((8, 4), (64, 16), (2, 32))


def inputs(form: str, values: int, keys: int, seed: int = 0, **changes: Any) -> RecurrenceInputs:
    """Random lanes: one idle, one fresh; what is not used is NaN."""
    rng = np.random.default_rng(seed)
    key_heads = 2 if form == "ssd in groups" else HEADS

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    query, key = draw(LANES, 1, key_heads, keys), draw(LANES, 1, key_heads, keys)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    decay = -np.abs(draw(LANES, 1, HEADS, keys) if form == "channel" else draw(LANES, 1, HEADS))
    beta = None if form.startswith("ssd") else rng.uniform(0.1, 0.9, (LANES, 1, HEADS)).astype(np.float32)
    valid, fresh = np.ones((LANES, 1), bool), np.zeros(LANES, bool)
    valid[1], fresh[3] = False, True
    state = draw(LANES, HEADS, values, keys)
    state[3] = np.nan
    for one in (query, key, decay):
        one[1] = np.nan
    value = draw(LANES, 1, HEADS, values)
    names = "query", "key", "value", "log_decay", "state", "valid", "fresh"
    arrays = dict(zip(names, map(jnp.asarray, (query, key, value, decay, state, valid, fresh)), strict=True))
    return RecurrenceInputs(**arrays, beta=None if beta is None else jnp.asarray(beta), **changes)


def kernel(given: RecurrenceInputs) -> Any:
    return jax.jit(partial(recurrent_step, interpret=True))(given)


def check(form: str, given: RecurrenceInputs, found: Any) -> None:
    reference = ssd_reference if form.startswith("ssd") else delta_rule_reference
    for one, expected in zip(found, jax.jit(reference)(given), strict=True):
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("values", "keys"), SIZES)
def test_kernel_computes_the_recurrence(form: str, values: int, keys: int):
    given = inputs(form, values, keys)
    check(form, given, kernel(given))


@pytest.mark.parametrize("form", FORMS)
def test_lanes_keep_their_bits(form: str):
    """Idle lanes keep their state; NaN in one lane reaches no other."""
    given = inputs(form, 64, 16)
    output, state = kernel(given)
    np.testing.assert_array_equal(state[1], given.state[1])
    assert not np.any(output[1])
    for lane in range(LANES):
        poisoned = replace(given, state=given.state.at[lane].set(jnp.nan), value=given.value.at[lane].set(jnp.nan))
        others = np.delete(np.arange(LANES), lane)
        for found, expected in zip(kernel(poisoned), (output, state), strict=True):
            np.testing.assert_array_equal(found[others], expected[others])
        alone = jax.tree.map(operator.itemgetter(slice(lane, lane + 1)), given)
        for found, expected in zip(kernel(alone), (output, state), strict=True):
            np.testing.assert_array_equal(found[0], expected[lane])


@pytest.mark.parametrize("form", FORMS)
def test_kernel_is_proved_from_the_inside(form: str):
    given = inputs(form, 64, 16)
    rest = {name: getattr(given, name) for name in ("query", "key", "value", "log_decay", "fresh", "beta")}

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        found = recurrent_step(RecurrenceInputs(**rest, state=state, valid=(lengths > 0)[:, None]), interpret=True)
        return found.output, found.state

    state = Pool("rows", dims=("lane", "value_head", "value", "key"))
    contract = LaneContract((state, Lane(role="length"), Lane()), (Lane(), state))
    proof = prove_isolation(step, (given.state, jnp.ones(LANES, jnp.int32), rest), contract)
    (note,) = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert note.about.startswith(KERNEL.name)
    assert {"idle", "dimensions"} <= {one.id for one in proof.proved}


@pytest.mark.parametrize("form", FORMS)
def test_operations_choose_it(form: str):
    given = inputs(form, 8, 4)
    step = ssd_step if form.startswith("ssd") else delta_rule_step

    def kernels(**changes: Any) -> bool:
        return "pallas_call" in str(jax.make_jaxpr(step)(replace(given, devices=Devices(**changes))))

    assert kernels(kernels="interpret") and kernels(kernels="auto", platform="gpu")
    assert not kernels() and not kernels(kernels="auto") and not kernels(kernels="off", platform="gpu")
    assert not kernels(kernels="auto", platform="tpu")
    with pytest.raises(ValueError, match="'fast'"):
        kernels(kernels="fast")


@pytest.mark.parametrize(
    ("values", "keys", "tokens"), [(6, 4, 1), (8, 5, 1), (8, 2 * MAX_KEY, 1), (8, 4, MAX_TOKENS + 1)]
)
def test_other_sizes_are_left_to_the_plain_form(values: int, keys: int, tokens: int):
    query, value = jnp.zeros((LANES, tokens, HEADS, keys)), jnp.zeros((LANES, tokens, HEADS, values))
    state, real = jnp.zeros((LANES, HEADS, values, keys)), jnp.ones((LANES, tokens), bool)
    given = RecurrenceInputs(query, query, value, query, state, real, real[:, 0])
    assert KERNEL.unsupported(given) and not KERNEL.chosen("auto", "gpu", given)


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


@pytest.mark.parametrize("form", FORMS)
def test_tokens_one_after_the_other(form: str):
    """A step that verifies drafts, its state kept, and the replay of the accepted tokens."""
    given = several(form)
    padding = ~given.valid

    def zeros(x: Any) -> Any:
        return None if x is None else jnp.where(padding.reshape(padding.shape + (1,) * (x.ndim - 2)), 0.0, x)

    # the reference would multiply what padding tokens hold
    names = "query", "key", "value", "log_decay", "beta"
    clean = replace(given, **{name: zeros(getattr(given, name)) for name in names})
    found = kernel(given)
    check(form, clean, found)
    np.testing.assert_array_equal(found.state[1], given.state[1])
    kept = jax.jit(partial(recurrent_step, keep_state=True, interpret=True))(given)
    np.testing.assert_array_equal(kept.output, found.output)
    assert kept.state is None
    poisoned = replace(given, state=given.state.at[::2].set(jnp.nan), value=given.value.at[::2].set(jnp.nan))
    for one, expected in zip(kernel(poisoned), found, strict=True):
        np.testing.assert_array_equal(one[1::2], expected[1::2])
    first = jax.tree.map(lambda x: x[:, :1] if x.ndim > 1 and x.shape[1] == 3 else x, given)
    accepted = replace(given, valid=given.valid & (jnp.arange(3) < 1)[None])
    np.testing.assert_allclose(kernel(accepted).state, kernel(first).state, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_several_tokens_are_proved_from_the_inside(form: str):
    given = several(form)
    rest = {name: getattr(given, name) for name in ("query", "key", "value", "log_decay", "fresh", "beta")}

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        valid = jnp.arange(3)[None] < lengths[:, None]
        operation = ssd if form.startswith("ssd") else delta_rule
        devices = Devices(kernels="interpret")
        return tuple(operation(RecurrenceInputs(**rest, state=state, valid=valid, devices=devices)))

    pool = Pool("rows", dims=("lane", "value_head", "value", "key"))
    contract = LaneContract((pool, Lane(role="length"), Lane()), (Lane(), pool))
    proof = prove_isolation(step, (given.state, jnp.ones(LANES, jnp.int32), rest), contract)
    (note,) = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert note.about.startswith(KERNEL.name)
    assert {"idle", "dimensions"} <= {one.id for one in proof.proved}
