"""CPU kernels for short convolutions under XLA: numbers, declarations, in-place updates."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls_in_place import (
    check_a_call_beside_is_found,
    check_declaration,
    check_derivatives,
    check_each_device,
    check_in_place,
    check_proof_by_slot_map,
    check_rows_by_slot,
    kernels_called,
    rows_contract,
)
from instruction_sets import instruction_sets
from jax.sharding import PartitionSpec as P

from hybridlm.families import LaneInfo, layer_conv
from ir_passes import Pool, Shared, compile_step
from models import Devices
from models.ops.layout import materialize
from models.ops.recurrences.conv_step_cpu import KERNEL, MAX_TAPS, READ, STEP, ConvInputs, conv_step_cpu

pytestmark = pytest.mark.cpu_kernels

HERE = Devices(kernels="auto")
STATE = Pool("state", dims=("row", "tap", "channel"))
CONTRACT = rows_contract(STATE, lanes=2)
LANES = 5
Draw = np.random.default_rng(0).normal


def arguments(tokens: int = 1, taps: int = 4, channels: int = 37, dtype: Any = jnp.float32) -> tuple[Any, ...]:
    """Draw windows, lengths, inputs and fresh lanes (one idle, one fresh) with NaN elsewhere."""
    lengths = np.minimum([tokens, 0, 1, max(tokens - 1, 1), tokens], tokens).astype(np.int32)
    x, state = Draw(size=(LANES, tokens, channels)), Draw(size=(LANES, taps - 1, channels))
    x[np.arange(tokens)[None] >= lengths[:, None]] = np.nan
    state[3] = np.nan
    fresh = np.arange(LANES) == 3
    return jnp.asarray(state, dtype), jnp.asarray(lengths), jnp.asarray(x, jnp.float32), jnp.asarray(fresh)


def weights(channels: int = 37, taps: int = 4, dtype: Any = jnp.float32) -> tuple[Any, Any]:
    draw = np.random.default_rng(1).normal
    return jnp.asarray(draw(size=(channels, 1, taps)), dtype), jnp.asarray(draw(size=channels), jnp.float32)


def layer(
    state: Any, lengths: Any, x: Any, fresh: Any, weight: Any, bias: Any = None, *,
    devices: Devices = HERE, activated: bool = True, verifying: bool = False, slots: Any = None,
) -> Any:  # fmt: skip
    """Run the layer; outputs of padding tokens are zero."""
    valid = jnp.arange(x.shape[1])[None] < lengths[:, None]
    info = LaneInfo(lengths, jnp.zeros_like(lengths), valid, fresh, 1, verifying=verifying, slots=slots)
    y, new = layer_conv(x, weight, state, info, bias, devices, activated=activated)
    return jnp.where(valid[:, :, None], y, 0.0), new


WEIGHT, BIAS = weights()


def step(state: Any, lengths: Any, x: Any, fresh: Any, slots: Any = None) -> Any:
    return conv_step_cpu(ConvInputs(x, WEIGHT[:, 0], state, lengths, fresh, BIAS, slots), activated=True)


def kernel(*args: Any, slots: Any = None, **settings: Any) -> Any:
    state, lengths, x, fresh = args
    run = jax.jit(partial(conv_step_cpu, **{"activated": True} | settings))
    return run(ConvInputs(x, WEIGHT[:, 0], state, lengths, fresh, BIAS, slots))


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernel_computes_the_convolution(dtype: Any, instructions: str, monkeypatch: pytest.MonkeyPatch):
    """Windows are rounded as in the layer; idle lanes keep their bits, also NaN."""
    monkeypatch.setattr("models.ops.kernels.fastest", lambda: instructions)
    for tokens, taps, channels, biased, activated in (
        (1, 4, 37, True, True),
        (3, 4, 64, False, True),
        (5, 3, 9, True, False),
        (130, 4, 37, True, True),
    ):
        args = arguments(tokens, taps, channels, dtype)
        weight, bias = weights(channels, taps, dtype)
        run = jax.jit(partial(layer, activated=activated), static_argnames=("devices", "verifying"))
        rest = (*args, weight, bias if biased else None)
        (result, new), (expected, updated) = run(*rest), run(*rest, devices=Devices())
        np.testing.assert_allclose(result, expected, rtol=2e-6, atol=2e-6)
        np.testing.assert_array_equal(new, updated)
        assert np.asarray(new[1]).tobytes() == np.asarray(args[0][1]).tobytes()
        output, none = run(*rest, verifying=True)
        np.testing.assert_array_equal(output, result)
        assert none is None


def test_rows_by_slot():
    state, *rest = arguments(3)
    check_rows_by_slot(lambda rows, slots=None: kernel(rows, *rest, slots=slots), state, "a row of its own")


def test_lengths_beyond_the_tokens_are_refused():
    state, lengths, x, fresh = arguments(3)
    for wrong in (4, -1):
        with pytest.raises(jax.errors.JaxRuntimeError, match="expected 0 to 3"):
            jax.block_until_ready(kernel(state, lengths.at[2].set(wrong), x, fresh))


def test_layers_choose_it():
    def calls(args: tuple[Any, ...], weight: Any = WEIGHT, **settings: Any) -> list[str]:
        return kernels_called(partial(layer, **settings), *args, weight)

    for args in (arguments(), arguments(3), arguments(130, dtype=jnp.bfloat16)):
        assert (
            calls(args) == [STEP] and calls(args, verifying=True) == [READ] and calls(args, activated=False) == [STEP]
        )
    slots = jnp.arange(LANES, dtype=jnp.int32)
    assert calls(arguments(), slots=slots) == [f"{STEP}_by_slot"]
    assert calls(arguments(), slots=slots, verifying=True) == [f"{READ}_by_slot"]
    for other in (Devices(), Devices(kernels="interpret"), Devices(platform="gpu", kernels="auto")):
        assert not calls(arguments(channels=37), devices=other)
    assert not calls(arguments(dtype=jnp.float16))
    for taps in (1, MAX_TAPS + 1):
        x, state = jnp.zeros((1, 1, 8)), jnp.zeros((1, taps - 1, 8))
        assert not KERNEL.supports(ConvInputs(x, jnp.zeros((8, taps)), state, jnp.ones(1), jnp.zeros(1)))


@pytest.mark.parametrize("activated", [True, False])
def test_derivatives_match_the_plain_form(activated: bool):
    state, lengths, x, fresh = (
        jnp.nan_to_num(array) if array.dtype == jnp.float32 else array for array in arguments(3)
    )

    def loss(devices: Devices, state: Any, x: Any, weight: Any, bias: Any) -> Any:
        y, new = layer(state, lengths, x, fresh, weight, bias, devices=devices, activated=activated)
        return jnp.sum(jnp.tanh(y)) + jnp.sum(new**2)

    check_derivatives(loss, state, x, WEIGHT, BIAS)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_step_is_certified_and_in_place(dtype: Any, tokens: int):
    args = arguments(tokens, dtype=dtype)
    for result, expected in zip(check_in_place(step, args, CONTRACT, STEP), kernel(*args), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_compiled_step_refuses_operands_alike_before_and_after_its_first_call() -> None:
    """JAX's fast path, which begins with the second call, has ValueError for the kernel's error."""
    state, lengths, x, fresh = arguments(3)
    wrong = lengths.at[2].set(4)
    for calls in range(3):
        compiled = compile_step(step, (state, lengths, x, fresh), CONTRACT)
        for _ in range(calls):
            jax.block_until_ready(compiled(jnp.array(state), lengths, x, fresh))
        with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT: conv_step: lane 2 .* expected 0 to 3"):
            jax.block_until_ready(compiled(jnp.array(state), wrong, x, fresh))


def test_each_device_of_a_mesh_has_its_lanes_and_channels():
    state, lengths, x, fresh = (array[:4] for array in arguments(3, channels=38))  # the second lane is idle
    weight, bias = weights(38)
    by_channel = P("data", None, "model")
    specs = by_channel, P("data"), by_channel, P("data"), P("model"), P("model")

    def of_device(state: Any, lengths: Any, x: Any, fresh: Any, taps: Any, bias: Any) -> Any:
        return conv_step_cpu(ConvInputs(x, taps, state, lengths, fresh, bias), activated=True)

    def poisoned(lane: int) -> tuple[Any, ...]:
        return state.at[lane].set(jnp.nan), lengths, x.at[lane].set(jnp.nan), fresh, weight[:, 0], bias

    args = (state, lengths, x, fresh, weight[:, 0], bias)
    contract = replace(CONTRACT, inputs=(*CONTRACT.inputs, Shared(), Shared()))
    check_each_device(of_device, args, (specs, (by_channel, by_channel)), contract, poisoned)


def test_proof_believes_the_declaration_and_nothing_more():
    args = arguments()
    always_busy = lambda state, lengths, *rest: step(state, jnp.maximum(lengths, 1), *rest)
    other_lanes = lambda state, lengths, x, fresh: step(state, lengths, x[::-1], fresh)

    def turned(state: Any, *rest: Any) -> Any:
        output, updated = step(jnp.flip(state, 1), *rest)
        return output, jnp.flip(updated, 1)

    def read_behind(state: Any, *rest: Any) -> Any:
        output, updated = step(state, *rest)
        return output + jnp.sum(state, axis=(1, 2))[:, None, None], updated

    def taps_of_lanes(state: Any, lengths: Any, x: Any, fresh: Any) -> Any:
        return conv_step_cpu(ConvInputs(x, WEIGHT[:, 0] * x[0, 0, 0], state, lengths, fresh, BIAS), activated=True)

    wrong = always_busy, other_lanes, turned, read_behind, taps_of_lanes
    check_declaration(step, args, CONTRACT, STEP, *wrong)


def test_rows_by_slot_are_proved():
    check_proof_by_slot_map(step, arguments(), CONTRACT)


def test_inputs_as_large_as_the_pool_are_no_second_pool():
    """The audit accepts the update in place and does not take inputs for windows."""
    state, lengths, x, fresh = arguments(6)
    pool, slots = jnp.zeros((8, *state.shape[1:])), jnp.array([3, 1, 2, 7, 5], jnp.int32)
    assert x.size >= pool.size - pool[0].size

    of_tanh = lambda pool, lengths, x, *rest: step(pool, lengths, materialize(jnp.tanh(x)), *rest)
    assert compile_step(
        of_tanh, (pool, lengths, x, fresh, slots), rows_contract(STATE, lanes=2, rows=8)
    ).certificate.audited


def test_audit_finds_a_call_that_does_not_write_in_place(monkeypatch: pytest.MonkeyPatch):
    check_a_call_beside_is_found(monkeypatch, step, arguments(), CONTRACT, STEP)


def test_lanes_keep_their_bits():
    """Bits alone, in a batch, and next to poisoned lanes are equal."""
    args = arguments(3)
    results = kernel(*args)
    for lane in range(LANES):
        for other in (jnp.nan, jnp.inf):
            poisoned = args[0].at[lane].set(other), args[1], args[2].at[lane].set(other), args[3]
            for result, expected in zip(kernel(*poisoned), results, strict=True):
                neighbours = np.arange(LANES) != lane
                np.testing.assert_array_equal(np.asarray(result)[neighbours], np.asarray(expected)[neighbours])
        for single, expected in zip(kernel(*(array[lane : lane + 1] for array in args)), results, strict=True):
            np.testing.assert_array_equal(single[0], expected[lane])
