"""The kernel for one recurrent token equals the plain forms and separates lanes."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls_in_place import check_rows_by_slot
from recurrence_cases import (
    FORMS,
    HEADS,
    LANES,
    arguments,
    check,
    check_lanes_keep_their_bits,
    check_proof,
    check_proof_by_slot,
    inputs,
    several,
    zero_padding,
)

from hybridlm.families import LaneInfo
from models import Devices
from models.ops.recurrences.delta_rule import DeltaTokens, delta_rule, delta_rule_step, run_delta_rule
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.recurrent_step_gpu import KERNEL, MAX_KEY, MAX_TOKENS, recurrent_step
from models.ops.recurrences.ssd import ssd, ssd_step

SIZES = ((8, 4), (64, 16), (2, 32))
SLOTS, NAMED = 9, (7, 7, 2, 8, 5)
"""Rows of a pool, and rows of the lanes; lane 1 is idle and names the row of lane 0, which it must not write."""
BUSY = jnp.array([0, 2, 3, 4])
kernel = jax.jit(partial(recurrent_step, interpret=True))


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("values", "keys"), SIZES)
def test_kernel_computes_the_recurrence(form: str, values: int, keys: int):
    operands = inputs(form, values, keys)
    check(form, operands, kernel(operands))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_lanes_keep_their_bits(form: str):
    check_lanes_keep_their_bits(inputs(form, 64, 16), kernel)


def in_pool(operands: RecurrenceInputs) -> tuple[Any, jax.Array]:
    """Return the lanes' rows in a pool with rows of NaN, and their slots."""
    slots = jnp.asarray(NAMED, jnp.int32)
    pool = jnp.full((SLOTS, *operands.state.shape[1:]), jnp.nan).at[slots[BUSY]].set(operands.state[BUSY])
    return replace(operands, state=pool, slots=slots), slots[BUSY]


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_rows_by_slot_give_the_same_bits(form: str, tokens: int):
    """Two blocks of values; foreign rows stay, and another batch of lanes reuses the rows."""
    operands = inputs(form, 64, 16) if tokens == 1 else several(form, 64, 16)
    check_rows_by_slot(lambda rows, slots=None: kernel(replace(operands, state=rows, slots=slots)), operands.state)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_verified_in_the_rows_of_the_slots(form: str):
    operands = several(form, 64, 16)
    by_slot, _ = in_pool(operands)
    verified = jax.jit(partial(recurrent_step, keep_state=True, interpret=True))
    np.testing.assert_array_equal(verified(by_slot).output, verified(operands).output)
    assert verified(by_slot).state is None


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_operations_leave_the_slots_to_the_kernel(form: str, tokens: int):
    """No row is gathered or scattered; numbers equal the plain form."""
    clean = zero_padding(inputs(form, 64, 16) if tokens == 1 else several(form, 64, 16))
    by_slot, named = in_pool(clean)
    operation = ssd if form.startswith("ssd") else delta_rule

    def run(kernels: str) -> Any:
        form_by = lambda item: operation(replace(item, devices=Devices(kernels=kernels)))
        # the plain form writes the rows of idle lanes too, which are distinct in an engine
        distinct = replace(by_slot, slots=by_slot.slots.at[1].set(0))
        return str(jax.make_jaxpr(form_by)(distinct)), jax.jit(form_by)(distinct)

    (program, (output, pool)), (_, (expected, rows)) = run("interpret"), run("off")
    assert KERNEL.name in program and "scatter" not in program and "gather" not in program
    np.testing.assert_allclose(output, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(pool[named], rows[named], rtol=2e-5, atol=2e-6)
    foreign = np.delete(np.arange(SLOTS), np.asarray(named))
    np.testing.assert_array_equal(pool[foreign], by_slot.state[foreign])


CHANNELS = {
    "shared keys": (2, HEADS, 16, 8, "head"), "wide values": (HEADS, HEADS, 8, 16, "channel"),
    "equal sizes": (2, HEADS, 16, 16, "head"), "tiles of values": (2, HEADS, 16, 64, "head"),
}  # fmt: skip
"""Key heads, value heads, sizes of key and value, form of the decay."""


def layer(kind: str, tokens: int, kernels: str = "interpret") -> tuple[Any, tuple[Any, ...]]:
    """Return a layer's recurrence after the convolution: (state, lengths, operands, slots)."""
    key_heads, heads, keys, values, form = CHANNELS[kind]
    operands = inputs(form, values, keys, heads=heads) if tokens == 1 else several(form, values, keys, tokens)
    rng = np.random.default_rng(tokens)
    channels = rng.normal(size=(LANES, tokens, 2 * key_heads * keys + heads * values)).astype(np.float32)
    channels[~np.asarray(operands.valid)] = np.nan
    state, _, rest = arguments(operands)
    slots = jnp.array([7, 0, 2, 8, 5], jnp.int32)
    pool = jnp.full((SLOTS, *state.shape[1:]), jnp.nan).at[slots].set(state)

    def step(state: Any, lengths: Any, rest: Any, slots: Any) -> Any:
        valid = jnp.arange(tokens)[None] < lengths[:, None]
        info = LaneInfo(lengths, jnp.zeros_like(lengths), valid, rest["fresh"], 1, slots=slots)
        delta_tokens = DeltaTokens(rest["channels"], rest["decay"], rest["beta"])
        devices = Devices(kernels=kernels)
        return tuple(run_delta_rule(rest["channels"], key_heads, delta_tokens, info, state, devices))

    operands_by_name = {
        "channels": jnp.asarray(channels),
        "decay": rest["log_decay"],
        "beta": rest["beta"],
        "fresh": rest["fresh"],
    }
    return step, (pool, jnp.sum(operands.valid, axis=1, dtype=jnp.int32), operands_by_name, slots)


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("kind", CHANNELS)
def test_queries_and_keys_are_normalised_inside(kind: str, tokens: int):
    """The kernel normalises the convolution's outputs with NaN in padding tokens."""
    (step, args), (plain, _) = layer(kind, tokens), layer(kind, tokens, "off")
    clean = jax.tree.map(lambda x: jnp.nan_to_num(x) if x.ndim == 3 else x, args[2])
    output, pool = jax.jit(step)(*args)
    expected, rows = jax.jit(plain)(*args[:2], clean, args[3])
    np.testing.assert_allclose(output, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(pool, rows, rtol=2e-5, atol=2e-6)
    idle = args[3][1]
    np.testing.assert_array_equal(pool[idle], args[0][idle])
    check_proof_by_slot(KERNEL, step, args)


def test_channels_in_blocks_of_a_key_are_proved():
    """A product's kernel writes its outputs in blocks, here as many as keys and values have channels."""
    step, (pool, lengths, rest, slots) = layer("equal sizes", 1)
    blocks = rest | {"channels": rest["channels"].reshape(LANES, 1, -1, 16)}
    joined = lambda rest: rest | {"channels": rest["channels"].reshape(LANES, 1, -1)}
    in_blocks = lambda pool, lengths, rest, slots: step(pool, lengths, joined(rest), slots)
    check_proof_by_slot(KERNEL, in_blocks, (pool, lengths, blocks, slots))


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_rows_by_slot_are_proved(form: str, tokens: int):
    state, *args = arguments(inputs(form, 64, 16) if tokens == 1 else several(form, 64, 16))
    pool, slots = jnp.zeros((SLOTS, *state.shape[1:])), jnp.array([7, 0, 2, 8, 5], jnp.int32)

    def step(state: Any, lengths: Any, rest: Any, slots: Any) -> Any:
        valid = jnp.arange(tokens)[None] < lengths[:, None]
        return tuple(recurrent_step(RecurrenceInputs(**rest, state=state, valid=valid, slots=slots), interpret=True))

    check_proof_by_slot(KERNEL, step, (pool, *args, slots))


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_kernel_is_proved_from_the_inside(form: str, tokens: int):
    operands = inputs(form, 64, 16) if tokens == 1 else several(form)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        valid = jnp.arange(tokens)[None] < lengths[:, None]
        operation = ssd if form.startswith("ssd") else delta_rule
        devices = Devices(kernels="interpret")
        return tuple(operation(RecurrenceInputs(**rest, state=state, valid=valid, devices=devices)))

    check_proof(KERNEL, step, arguments(operands))


@pytest.mark.parametrize("form", FORMS)
def test_operations_choose_it(form: str):
    operands = inputs(form, 8, 4)
    step = ssd_step if form.startswith("ssd") else delta_rule_step

    def kernels(**changes: Any) -> bool:
        return "pallas_call" in str(jax.make_jaxpr(step)(replace(operands, devices=Devices(**changes))))

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
    operands = RecurrenceInputs(query, query, value, query, state, real, real[:, 0])
    assert not KERNEL.supports(operands) and not KERNEL.chosen(Devices(platform="gpu", kernels="auto"), operands)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_tokens_one_after_the_other(form: str):
    """A step that verifies drafts, its state kept, and the replay of the accepted tokens."""
    operands = several(form)
    # the reference would multiply what padding tokens hold
    clean = zero_padding(operands)
    result = kernel(operands)
    check(form, clean, result)
    np.testing.assert_array_equal(result.state[1], operands.state[1])
    stored = jax.jit(partial(recurrent_step, keep_state=True, interpret=True))(operands)
    np.testing.assert_array_equal(stored.output, result.output)
    assert stored.state is None
    poisoned = replace(operands, state=operands.state.at[::2].set(jnp.nan), value=operands.value.at[::2].set(jnp.nan))
    for item, expected in zip(kernel(poisoned), result, strict=True):
        np.testing.assert_array_equal(item[1::2], expected[1::2])
    first = jax.tree.map(lambda x: x[:, :1] if x.ndim > 1 and x.shape[1] == 3 else x, operands)
    accepted = replace(operands, valid=operands.valid & (jnp.arange(3) < 1)[None])
    np.testing.assert_allclose(kernel(accepted).state, kernel(first).state, rtol=2e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 3])
def test_values_are_scaled_and_added_inside(tokens: int):
    """An SSD layer's time step and D, with padding and an idle lane."""
    operands = inputs("ssd in groups", 8, 4) if tokens == 1 else several("ssd in groups", tokens=tokens)
    rng = np.random.default_rng(tokens)
    scale = jnp.asarray(rng.uniform(0.1, 1, (LANES, tokens, HEADS)).astype(np.float32))
    around = scale, jnp.asarray(rng.normal(size=HEADS).astype(np.float32))

    def run(operands: RecurrenceInputs, kernels: str) -> Any:
        devices = Devices(kernels=kernels)
        return jax.jit(lambda item: ssd(replace(item, devices=devices), surroundings=around))(operands)

    result = run(operands, "interpret")
    clean = jax.tree.map(lambda x: jnp.nan_to_num(x) if x.ndim > 2 and x.shape[1] == tokens else x, operands)
    expected = run(clean, "off")
    valid = operands.valid[:, :, None, None]
    np.testing.assert_allclose(result.output, jnp.where(valid, expected.output, 0.0), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(result.state, expected.state, rtol=2e-5, atol=2e-6)

    def step(state: Any, lengths: Any, rest: Any) -> Any:
        real = jnp.arange(tokens)[None] < lengths[:, None]
        every = rest.pop("scale"), around[1]
        item = RecurrenceInputs(**rest, state=state, valid=real, devices=Devices(kernels="interpret"))
        return tuple(ssd(item, surroundings=every))

    *args, rest = arguments(operands)
    check_proof(KERNEL, step, (*args, {**rest, "scale": scale}))
