"""Devices with different operands change no row, and all of them report it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from traced_programs import schedule
from zoo.catalogue import PROGRAMS
from zoo.meshes.agreement import COPY_SPECS
from zoo.meshes.sharded import mesh

from ir_passes import Assumption, Claim, CompiledStep, compile_step
from ir_passes.proof.agreement import devices_agree

COPIED = PROGRAMS["sharded rows copied where devices agree"]


def placed(args: tuple[Any, ...]) -> list[Any]:
    """Return arguments on two by two devices, in separate memory for donation."""
    split = [NamedSharding(mesh(2, 2), spec) for spec in COPY_SPECS[: len(args)]]
    return [jax.device_put(jnp.array(array, copy=True), place) for array, place in zip(args, split, strict=True)]


@pytest.fixture(scope="module")
def step() -> CompiledStep:
    return compile_step(COPIED.step, tuple(placed(COPIED.args())), COPIED.contract)


def divergent(array: np.ndarray, device: int) -> jax.Array:
    """An array that every device has whole, and one has otherwise."""
    sharding = NamedSharding(mesh(2, 2), P())
    parts = []
    for number, place in enumerate(mesh(2, 2).devices.flat):
        part = array.copy()
        part[0] += number == device
        parts.append(jax.device_put(part, place))
    return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)


def test_where_devices_agree_rows_are_written(step: CompiledStep) -> None:
    assert Claim.AGREEMENT in {statement.id for statement in step.certificate.proved}
    assumed = [statement for statement in step.certificate.assumed if statement.id == Assumption.DECLASSIFIED]
    assert [("given the same operands" in assumption.about) for assumption in assumed] == [True]
    target, source, read, write = COPIED.args(1)
    result, agree = step(*placed((target, source, read, write)))
    assert bool(agree)
    expected = target.copy()
    expected[write] = source[read]
    np.testing.assert_array_equal(np.asarray(result)[1:], expected[1:])


@pytest.mark.parametrize("index", [2, 3])
@pytest.mark.parametrize("device", [0, 1, 3])
def test_where_one_device_has_another_slot_map_nothing_is_written(step: CompiledStep, index: int, device: int) -> None:
    args = COPIED.args(1)
    arrays = placed(args)
    arrays[index] = divergent(args[index], device)
    result, agree = step(*arrays)
    assert [bool(shard.data) for shard in agree.addressable_shards] == [False] * 4
    np.testing.assert_array_equal(result, args[0])


def test_operands_that_are_split_alike_take_one_collective() -> None:
    for name, axes in (("sharded rows copied where devices agree", [("data", "model")]),
                       ("sharded rows and heads where devices agree", [("model",), ("data",)])):  # fmt: skip
        program = PROGRAMS[name]
        collectives = [entry.collective for entry in schedule(program.step, *program.args())]
        assert [collective.axes for collective in collectives if collective.operation == "pmax"] == axes


def test_where_nothing_is_shared_nothing_is_compared() -> None:
    lengths = jnp.ones(4, jnp.int32)
    assert bool(devices_agree(lengths))
    run = jax.shard_map(devices_agree, mesh=mesh(2, 2), in_specs=P(("data", "model")), out_specs=P())
    assert schedule(run, lengths) == ()


def test_numbers_of_other_widths_are_refused() -> None:
    with pytest.raises(TypeError, match=r"operands\['slots'\]: expected an array of 32 bits, got int8"):
        devices_agree({"slots": jnp.ones(4, jnp.int8)})
