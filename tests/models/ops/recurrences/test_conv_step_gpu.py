"""The kernel for short convolutions equals the layer and separates lanes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls_in_place import check_rows_by_slot
from recurrence_cases import check_proof, check_proof_by_slot

from hybridlm.families import LaneInfo, layer_conv
from models import Devices
from models.ops.recurrences.conv_step_cpu import ConvInputs
from models.ops.recurrences.conv_step_gpu import KERNEL, MAX_TAPS, MAX_TOKENS

LANES, CHANNELS = 5, 48
SLOTS = 9
CASES = ((1, 4, False), (1, 2, True), (3, 4, True), (5, 3, False))
"""Tokens, taps, bias."""


def operands(tokens: int, taps: int, biased: bool, dtype: Any = jnp.bfloat16) -> tuple[Any, ...]:
    """Random lanes, one idle and one fresh; unused values are NaN."""
    rng = np.random.default_rng(tokens)
    lengths = np.minimum([tokens, 0, 1, max(tokens - 1, 1), tokens], tokens).astype(np.int32)
    fresh = np.array([False, False, False, True, False])
    x = rng.normal(size=(LANES, tokens, CHANNELS)).astype(np.float32)
    x[np.arange(tokens)[None] >= lengths[:, None]] = np.nan
    state = rng.normal(size=(LANES, taps - 1, CHANNELS)).astype(np.float32)
    state[fresh] = np.nan
    weight = rng.normal(size=(CHANNELS, 1, taps)).astype(np.float32)
    bias = jnp.asarray(rng.normal(size=CHANNELS).astype(np.float32)) if biased else None
    return (
        jnp.asarray(state, dtype), jnp.asarray(x), jnp.asarray(lengths), jnp.asarray(fresh), jnp.asarray(weight),
        bias,
    )  # fmt: skip


def step(
    state: Any, x: Any, lengths: Any, fresh: Any, weight: Any, bias: Any, slots: Any = None, kernels: str = "interpret"
) -> Any:
    valid = jnp.arange(x.shape[1])[None] < lengths[:, None]
    info = LaneInfo(lengths, jnp.zeros_like(lengths), valid, fresh, 1, slots=slots)
    y, new = layer_conv(x, weight, state, info, bias, Devices(kernels=kernels))
    return jnp.where(valid[:, :, None], y, 0.0), new


run = jax.jit(step, static_argnames="kernels")


@pytest.mark.parametrize("case", [*CASES, (MAX_TOKENS, MAX_TAPS, True), (2, MAX_TAPS, False)])
def test_kernel_computes_the_convolution(case: tuple[int, int, bool]) -> None:
    inputs = operands(*case)
    (result, new), (expected, updated) = run(*inputs), run(*inputs, kernels="off")
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(new, updated)
    np.testing.assert_array_equal(new[1], inputs[0][1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_rows_by_slot_give_the_same_bits(case: tuple[int, int, bool]) -> None:
    """Blocks of channels; foreign and idle lanes' rows stay, and no row is gathered."""
    state, *rest = operands(*case)
    check_rows_by_slot(lambda rows, slots=None: run(rows, *rest, slots), state)
    pool, slots = jnp.zeros((SLOTS, *state.shape[1:]), state.dtype), jnp.array([7, 7, 2, 8, 5], jnp.int32)
    program = str(jax.make_jaxpr(step)(pool, *rest, slots))
    assert KERNEL.name in program and "scatter" not in program and "gather" not in program


@pytest.mark.parametrize("case", CASES)
def test_lanes_keep_their_bits(case: tuple[int, int, bool]) -> None:
    inputs = operands(*case)
    expected = run(*inputs)
    for bad in (0, 1):
        state, x = (array.at[bad::2].set(jnp.nan) for array in inputs[:2])
        other_lanes = np.arange(LANES) % 2 != bad
        for result, reference in zip(run(state, x, *inputs[2:]), expected, strict=True):
            np.testing.assert_array_equal(result[other_lanes], reference[other_lanes])


@pytest.mark.parametrize("case", CASES)
def test_kernel_is_proved_from_the_inside(case: tuple[int, int, bool]) -> None:
    state, x, lengths, fresh, weight, bias = operands(*case)
    pool, slots = jnp.zeros((SLOTS, *state.shape[1:]), state.dtype), jnp.array([7, 0, 2, 8, 5], jnp.int32)

    def of_lanes(state: Any, lengths: Any, rest: Any, slots: Any = None) -> Any:
        return step(state, rest["x"], lengths, rest["fresh"], weight, bias, slots)

    args = lengths, {"x": x, "fresh": fresh}
    check_proof(KERNEL, of_lanes, (state, *args), dims=("tap", "channel"))
    check_proof_by_slot(KERNEL, of_lanes, (pool, *args, slots), dims=("tap", "channel"))


@pytest.mark.slow
def test_no_state_is_written_while_drafts_are_verified() -> None:
    state, x, lengths, fresh, weight, bias = operands(3, 4, True)
    info = LaneInfo(lengths, lengths, jnp.ones(x.shape[:2], bool), fresh, 1, verifying=True)
    for kernels in ("off", "interpret"):
        assert layer_conv(x, weight, state, info, bias, Devices(kernels=kernels))[1] is None


@pytest.mark.parametrize(("tokens", "channels", "taps"), [(MAX_TOKENS + 1, 16, 4), (1, 24, 4), (1, 16, MAX_TAPS + 1)])
def test_other_sizes_are_left_to_the_plain_form(tokens: int, channels: int, taps: int) -> None:
    x, state = jnp.zeros((1, tokens, channels)), jnp.zeros((1, taps - 1, channels))
    assert not KERNEL.supports(ConvInputs(x, jnp.zeros((channels, taps)), state, jnp.ones(1), jnp.zeros(1)))
