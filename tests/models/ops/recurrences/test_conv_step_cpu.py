"""CPU kernels for short convolutions under XLA: numbers, declarations, in-place updates."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls_in_place import check_a_call_beside_is_found
from instruction_sets import instruction_sets
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from zoo.meshes.sharded import mesh

from hybridlm.steps.contract import kernel_calls, slot_map
from ir_passes import IsolationError, Lane, LaneContract, Pool, Shared, compile_step
from ir_passes.proof.lane_proof import prove_isolation
from models.cpu_kernels.library import BY_SLOT
from models.layers.short_conv import layer_conv
from models.ops.layout import materialize
from models.ops.recurrences.conv_step_cpu import (
    KERNEL,
    MAX_TAPS,
    READ,
    STEP,
    ConvInputs,
    conv_step_cpu,
)
from models.sharding.devices import Devices
from models.state.shapes import LaneInfo

pytestmark = pytest.mark.cpu_kernels

HERE = Devices(kernels="auto")
STATE = Pool("state", dims=("row", "tap", "channel"))
CONTRACT = LaneContract((STATE, Lane(role="length"), Lane(), Lane()), (Lane(), STATE), opaque=kernel_calls())
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


def step(state: Any, lengths: Any, x: Any, fresh: Any) -> Any:
    """Run a step of lanes alone, as the contract has it."""
    return conv_step_cpu(ConvInputs(x, WEIGHT[:, 0], state, lengths, fresh, BIAS), activated=True)


def kernel(*args: Any, slots: Any = None, **settings: Any) -> Any:
    state, lengths, x, fresh = args
    run = jax.jit(partial(conv_step_cpu, **{"activated": True} | settings))
    return run(ConvInputs(x, WEIGHT[:, 0], state, lengths, fresh, BIAS, slots))


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernel_computes_the_convolution(dtype: Any, instructions: str, monkeypatch: pytest.MonkeyPatch):
    """Windows are rounded as in the layer; idle lanes keep their bits, also NaN."""
    monkeypatch.setattr("models.ops.row_product.fastest", lambda: instructions)
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
    """Unnamed rows and rows of idle lanes keep their bits; other lanes reuse rows."""
    state, *rest = arguments(3)
    slots = jnp.array([6, 6, 0, 4, 1], jnp.int32)  # the second lane is idle
    pool = jnp.full((8, *state.shape[1:]), jnp.nan).at[slots].set(state)
    expected, updated = kernel(pool[slots], *rest)
    result, new = kernel(pool, *rest, slots=slots)
    busy = jnp.array([0, 2, 3, 4])
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(new, pool.at[slots[busy]].set(updated[busy]))
    np.testing.assert_array_equal(kernel(pool, *rest, slots=slots, keep_state=True)[0], expected)
    turned = slots[jnp.array([3, 1, 4, 0, 2])]
    np.testing.assert_array_equal(kernel(new, *rest, slots=turned)[0], kernel(new[turned], *rest)[0])
    for wrong in ([0, 6, 8, 1, 2], [-1, 6, 0, 1, 2], [3, 6, 0, 3, 2]):
        with pytest.raises(jax.errors.JaxRuntimeError, match="a row of its own"):
            jax.block_until_ready(kernel(pool, *rest, slots=jnp.array(wrong, jnp.int32)))


def test_lengths_beyond_the_tokens_are_refused():
    state, lengths, x, fresh = arguments(3)
    for wrong in (4, -1):
        with pytest.raises(jax.errors.JaxRuntimeError, match="expected 0 to 3"):
            jax.block_until_ready(kernel(state, lengths.at[2].set(wrong), x, fresh))


def test_layers_choose_it():
    def calls(args: tuple[Any, ...], weight: Any = WEIGHT, **settings: Any) -> list[str]:
        traced = str(jax.make_jaxpr(partial(layer, **settings))(*args, weight))
        targets = (STEP + BY_SLOT, READ + BY_SLOT, READ, STEP)
        return [name for name in targets if f"target_name={name}\n" in traced]

    for args in (arguments(), arguments(3), arguments(130, dtype=jnp.bfloat16)):
        assert (
            calls(args) == [STEP] and calls(args, verifying=True) == [READ] and calls(args, activated=False) == [STEP]
        )
    slots = jnp.arange(LANES, dtype=jnp.int32)
    assert calls(arguments(), slots=slots) == [STEP + BY_SLOT]
    assert calls(arguments(), slots=slots, verifying=True) == [READ + BY_SLOT]
    for other in (Devices(), Devices(kernels="interpret"), Devices(platform="gpu", kernels="auto")):
        assert not calls(arguments(channels=37), devices=other)
    assert not calls(arguments(dtype=jnp.float16))
    for taps in (1, MAX_TAPS + 1):
        x, state = jnp.zeros((1, 1, 8)), jnp.zeros((1, taps - 1, 8))
        assert KERNEL.unsupported(ConvInputs(x, jnp.zeros((8, taps)), state, jnp.ones(1), jnp.zeros(1)))


@pytest.mark.parametrize("activated", [True, False])
def test_derivatives_are_those_of_the_plain_form(activated: bool):
    state, lengths, x, fresh = (
        jnp.nan_to_num(array) if array.dtype == jnp.float32 else array for array in arguments(3)
    )

    def loss(devices: Devices, state: Any, x: Any, weight: Any, bias: Any) -> Any:
        y, new = layer(state, lengths, x, fresh, weight, bias, devices=devices, activated=activated)
        return jnp.sum(jnp.tanh(y)) + jnp.sum(new**2)

    index = state, x, WEIGHT, BIAS
    result, expected = (
        jax.jit(jax.grad(partial(loss, devices), (0, 1, 2, 3)))(*index) for devices in (HERE, Devices())
    )
    for item, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(item, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_step_is_certified_and_in_place(dtype: Any, tokens: int):
    args = arguments(tokens, dtype=dtype)
    compiled = compile_step(step, args, CONTRACT)
    assert {"idle", "dimensions"} <= {statement.id for statement in compiled.certificate.proved}
    (assumed,) = [statement for statement in compiled.certificate.assumed if statement.id == "opaque-idle"]
    assert assumed.about.startswith(STEP)
    state = jnp.array(args[0])
    where = state.unsafe_buffer_pointer()
    output, updated = compiled(state, *args[1:])
    assert updated.unsafe_buffer_pointer() == where
    for result, expected in zip((output, updated), kernel(*args), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_each_device_of_a_mesh_has_its_lanes_and_channels():
    """Proved, audited and in place on each device, with the bits of one device."""
    args = tuple(array[:4] for array in arguments(3, channels=38))  # the second lane is idle, the fourth fresh
    weight, bias = weights(38)
    by_channel = P("data", None, "model")
    specs = by_channel, P("data"), by_channel, P("data"), P("model"), P("model")

    def of_device(state: Any, lengths: Any, x: Any, fresh: Any, taps: Any, bias: Any) -> Any:
        return conv_step_cpu(ConvInputs(x, taps, state, lengths, fresh, bias), activated=True)

    over = jax.shard_map(of_device, mesh=mesh(2, 2), in_specs=specs, out_specs=(by_channel, by_channel))

    def placed(*args: Any) -> Any:
        operands = *args, weight[:, 0], bias
        return [
            jax.device_put(jnp.array(x), NamedSharding(mesh(2, 2), spec))
            for x, spec in zip(operands, specs, strict=True)
        ]

    contract = replace(CONTRACT, inputs=(*CONTRACT.inputs, Shared(), Shared()))
    compiled = compile_step(over, placed(*args), contract)
    assert compiled.certificate.holds and compiled.certificate.copies == ()
    assert "idle" in {statement.id for statement in compiled.certificate.proved}

    def run(state: Any, lengths: Any, x: Any, fresh: Any) -> tuple[np.ndarray, ...]:
        operands = placed(state, lengths, x, fresh)
        places = [shard.data.unsafe_buffer_pointer() for shard in operands[0].addressable_shards]
        output, updated = compiled(*operands)
        assert [shard.data.unsafe_buffer_pointer() for shard in updated.addressable_shards] == places
        return np.asarray(output), np.asarray(updated)

    expected = jax.jit(of_device)(*args, weight[:, 0], bias)
    state, lengths, x, fresh = args
    for result, reference in zip(run(*args), expected, strict=True):
        np.testing.assert_array_equal(result, reference)
    for lane in range(4):
        neighbours = np.arange(4) != lane
        poisoned = run(state.at[lane].set(jnp.nan), lengths, x.at[lane].set(jnp.nan), fresh)
        for result, reference in zip(poisoned, expected, strict=True):
            np.testing.assert_array_equal(result[neighbours], np.asarray(reference)[neighbours])


def test_proof_believes_the_declaration_and_nothing_more():
    args = arguments()

    def always_busy(state: Any, lengths: Any, *rest: Any) -> Any:
        return step(state, jnp.maximum(lengths, 1), *rest)

    def other_lanes(state: Any, lengths: Any, x: Any, fresh: Any) -> Any:
        return step(state, lengths, x[::-1], fresh)

    def turned(state: Any, *rest: Any) -> Any:
        output, updated = step(jnp.flip(state, 1), *rest)
        return output, jnp.flip(updated, 1)

    def read_behind(state: Any, *rest: Any) -> Any:
        output, updated = step(state, *rest)
        return output + jnp.sum(state, axis=(1, 2))[:, None, None], updated

    def taps_of_lanes(state: Any, lengths: Any, x: Any, fresh: Any) -> Any:
        return conv_step_cpu(ConvInputs(x, WEIGHT[:, 0] * x[0, 0, 0], state, lengths, fresh, BIAS), activated=True)

    prove_isolation(step, args, CONTRACT)
    for wrong in (always_busy, other_lanes, turned, read_behind, taps_of_lanes):
        with pytest.raises(IsolationError):
            prove_isolation(wrong, args, CONTRACT)
    with pytest.raises(IsolationError, match=STEP):
        prove_isolation(step, args, replace(CONTRACT, opaque={}))


def test_rows_by_slot_are_proved():
    state, *args = arguments()
    pool, slots = jnp.zeros((8, *state.shape[1:])), jnp.array([3, 1, 2, 7, 5], jnp.int32)
    contract = LaneContract((*CONTRACT.inputs, slot_map(8)), CONTRACT.outputs, opaque=kernel_calls(slot_map(8)))

    def by_slot(pool: Any, lengths: Any, x: Any, fresh: Any, slots: Any) -> Any:
        return conv_step_cpu(ConvInputs(x, WEIGHT[:, 0], pool, lengths, fresh, BIAS, slots), activated=True)

    def by_the_next_slot(pool: Any, lengths: Any, x: Any, fresh: Any, slots: Any) -> Any:
        return by_slot(pool, lengths, x, fresh, jnp.roll(slots, 1))

    assert "idle" in {
        statement.id for statement in compile_step(by_slot, (pool, *args, slots), contract).certificate.proved
    }
    with pytest.raises(IsolationError):
        prove_isolation(by_the_next_slot, (pool, *args, slots), contract)


def test_inputs_as_large_as_the_pool_are_no_second_pool():
    """The audit knows that the windows are updated in place, and that the inputs are no version of them."""
    state, lengths, x, fresh = arguments(6)
    pool, slots = jnp.zeros((8, *state.shape[1:])), jnp.array([3, 1, 2, 7, 5], jnp.int32)
    assert x.size >= pool.size - pool[0].size

    def step(pool: Any, lengths: Any, x: Any, fresh: Any, slots: Any) -> Any:
        inputs = ConvInputs(materialize(jnp.tanh(x)), WEIGHT[:, 0], pool, lengths, fresh, BIAS, slots)
        return conv_step_cpu(inputs, activated=True)

    contract = LaneContract((*CONTRACT.inputs, slot_map(8)), CONTRACT.outputs, opaque=kernel_calls(slot_map(8)))
    assert compile_step(step, (pool, lengths, x, fresh, slots), contract).certificate.audited


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
