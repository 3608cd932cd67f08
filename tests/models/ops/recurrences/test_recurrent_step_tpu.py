"""The TPU kernel for one recurrent token equals the plain forms and separates lanes."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recurrence_cases import FORMS, HEADS, LANES, arguments, check, check_lanes_keep_their_bits, check_proof, inputs

from ir_passes import IsolationError, Lane, LaneContract, Pool, SlotMap, prove_isolation
from models import Devices
from models.ops.recurrences.delta_rule import delta_rule_step
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.recurrent_step_tpu import KERNEL, heads_of_block, recurrent_step_tpu
from models.ops.recurrences.ssd import ssd_step

SLOTS, NAMED = 9, (7, 0, 2, 8, 5)
"""Rows of a pool, and rows of the lanes; lane 1 is idle and has the null row."""


@jax.jit
def kernel(recurrence_inputs: RecurrenceInputs) -> Any:
    return recurrent_step_tpu(recurrence_inputs, interpret=True)


@pytest.mark.parametrize(
    ("form", "values", "keys", "heads"),
    [
        ("head", 5, 7, HEADS), ("channel", 3, 130, 2), ("ssd in groups", 5, 7, HEADS), ("ssd", 2, 32, HEADS),
        ("channel", 4, 4, 48),
    ],
)  # fmt: skip
def test_odd_sizes_and_several_blocks_of_heads(form: str, values: int, keys: int, heads: int):
    settings = inputs(form, values, keys, heads=heads)
    check(form, settings, kernel(settings))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_lanes_keep_their_bits(form: str):
    check_lanes_keep_their_bits(inputs(form, 64, 16), kernel)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["channel", "ssd in groups"])
def test_rows_by_slot(form: str):
    """Named rows advance as lanes do; all others, once named too, keep their bits."""
    settings, slots = inputs(form, 8, 4), jnp.asarray(NAMED, jnp.int32)
    pool = jnp.full((SLOTS, *settings.state.shape[1:]), jnp.nan).at[slots].set(settings.state)
    output, state = kernel(settings)
    result, updated = kernel(replace(settings, state=pool, slots=slots))
    np.testing.assert_array_equal(result, output)
    np.testing.assert_array_equal(updated, pool.at[slots].set(state))
    # other lanes take over the rows, one from the start
    turned = slots[jnp.array([3, 1, 0, 4, 2])]
    repeat, rows = kernel(replace(settings, state=updated, slots=turned))
    expected, states = kernel(replace(settings, state=updated[turned]))
    np.testing.assert_array_equal(repeat, expected)
    np.testing.assert_array_equal(rows, updated.at[turned].set(states))
    step = ssd_step if form.startswith("ssd") else delta_rule_step
    plain = jax.jit(step)(replace(settings, state=pool, slots=slots))
    np.testing.assert_allclose(plain.output, output, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(plain.state, pool.at[slots].set(state), rtol=2e-5, atol=2e-6)


def by_lane(form: str, heads: int = HEADS) -> tuple[Any, tuple[Any, ...]]:
    """A step of the kernel and its arguments: state, lengths, the rest."""
    settings = inputs(form, 8, 4, heads=heads)

    def step(state: Any, lengths: Any, rest: Any, slots: Any = None) -> Any:
        operands = RecurrenceInputs(**rest, state=state, valid=(lengths > 0)[:, None], slots=slots)
        return tuple(recurrent_step_tpu(operands, interpret=True))

    return step, arguments(settings)


@pytest.mark.parametrize("form", FORMS)
def test_kernel_is_proved_from_the_inside(form: str):
    check_proof(KERNEL, *by_lane(form, 48 if form == "head" else HEADS))


@pytest.mark.parametrize("form", ["head", "ssd in groups"])
def test_rows_by_slot_are_proved(form: str):
    step, (state, *args) = by_lane(form)
    pool, slots = jnp.zeros((SLOTS, *state.shape[1:])), jnp.asarray(NAMED, jnp.int32)
    contract = LaneContract((Pool("rows"), Lane(role="length"), Lane(), SlotMap("rows", SLOTS)), (Lane(), Pool("rows")))

    proof = prove_isolation(step, (pool, *args, slots), contract)
    assert "idle" in {statement.id for statement in proof.proved}
    by_the_next_slot = lambda pool, lengths, rest, slots: step(pool, lengths, rest, jnp.roll(slots, 1))
    with pytest.raises(IsolationError):
        prove_isolation(by_the_next_slot, (pool, *args, slots), contract)


@pytest.mark.parametrize("form", FORMS)
def test_operations_choose_it(form: str):
    settings = inputs(form, 8, 128)
    step = ssd_step if form.startswith("ssd") else delta_rule_step
    kernels = lambda **changes: KERNEL.name in str(jax.make_jaxpr(step)(replace(settings, devices=Devices(**changes))))
    assert kernels(kernels="auto", platform="tpu") and kernels(kernels="interpret", platform="tpu")
    assert not kernels(kernels="off", platform="tpu") and not kernels(kernels="auto")
    assert not kernels(kernels="auto", platform="gpu") and not kernels(kernels="interpret")


@pytest.mark.parametrize(
    ("sizes", "block"),
    [((32, 128, 128), 32), ((64, 128, 128), 32), ((24, 64, 128), 24), ((16, 256, 256), 8), ((128, 64, 128), 32)],
)
def test_heads_of_a_block(sizes: tuple[int, int, int], block: int):
    assert heads_of_block(*sizes) == block


@pytest.mark.parametrize(
    ("sizes", "tokens"), [((33, 8, 128), 1), ((4, 1024, 1024), 1), ((4, 8, 128), 2), ((4, 8, 64), 1), ((4, 4, 128), 1)]
)
def test_other_sizes_are_left_to_the_plain_form(sizes: tuple[int, int, int], tokens: int):
    heads, values, keys = sizes
    query, value = jnp.zeros((LANES, tokens, heads, keys)), jnp.zeros((LANES, tokens, heads, values))
    state, real = jnp.zeros((LANES, *sizes)), jnp.ones((LANES, tokens), bool)
    recurrence_inputs = RecurrenceInputs(query, query, value, query, state, real, real[:, 0])
    assert not KERNEL.supports(recurrence_inputs), sizes
    assert not KERNEL.chosen(Devices(platform="tpu", kernels="auto"), recurrence_inputs)
