"""The audit names the neighbours of opaque calls' results."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import Lane, LaneContract, Opaque, Pool, SlotMap, compile_step
from ir_passes.xla_audit.dataflow import LiveValues, live_values
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.memory import neighbours
from ir_passes.xla_audit.program import Executable, Slice

DOUBLED = Opaque((Lane(),), (Lane(),))


def host(x: np.ndarray) -> np.ndarray:
    return np.asarray(x) * 2


def step(pool: jax.Array, slots: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jnp.tanh(x)
    doubled = jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), y)
    new = doubled + y
    return new, pool.at[slots].set(new, mode="drop", unique_indices=True)


ARGS = (jnp.zeros((9, 8)), jnp.arange(1, 5, dtype=jnp.int32), jnp.ones((4, 8)))


@pytest.fixture(scope="module")
def program() -> tuple[Executable, LiveValues]:
    executable = read(jax.jit(step, donate_argnums=0).lower(*ARGS).compile())
    return executable, live_values(executable)


PLACES = {
    "both sides": ([(0, 64), (200, 64)], 0, 64, 8),
    "nothing behind it": ([(100, 28)], 0, 0, None),
    "nothing before it": ([(192, 8), (200, 8)], 0, None, 0),
    "the nearest": ([(0, 32), (32, 96), (256, 8), (512, 8)], 0, 0, 64),
    "another allocation": ([(192, 64)], 1, None, None),
    "its own bytes": ([(128, 64)], 0, None, None),
}


@pytest.mark.parametrize(("places", "allocation", "initial", "rest"), PLACES.values(), ids=PLACES)
def test_nearest_live_values_of_the_same_allocation(program, places, allocation, initial, rest) -> None:
    """One result of 64 bytes at byte 128, and others that are put around it."""
    executable, live = program
    (call,) = [item for item in live.executed if item.opcode == "custom-call"]
    output = live.values[live.of[call.id][()]]
    result = replace(output, slice=Slice(0, 128, 64))
    remainder = [replace(live.values[0], slice=Slice(allocation, i, size), stop=result.start) for i, size in places]
    dead = [
        replace(result, slice=Slice(0, index, 8), start=result.start + moved, stop=result.start + moved)
        for index in (120, 192)
        for moved in (-1, 1)
    ]
    (sentence,) = neighbours(executable, replace(live, values=(result, *remainder, *dead), of={call.id: {(): 0}}))
    sides = [
        f"nothing {side} it" if gap is None else f"{side} it {remainder[0]}" + (f", {gap} bytes away" if gap else "")
        for side, gap in (("before", initial), ("behind", rest))
    ]
    assert sentence.endswith(f"writes {result} in {result.slice}: {', '.join(sides)}")


def test_certificates_name_the_reach_of_callbacks() -> None:
    contract = LaneContract((Pool("a"), SlotMap("a", 9), Lane()), (Lane(), Pool("a")), opaque={"host": DOUBLED})
    certificate = compile_step(step, ARGS, contract).certificate
    assert certificate.holds and len(certificate.neighbours) == 1
    assert "callback writes pure_callback" in certificate.neighbours[0]
    assert "next to the results of custom calls:" in certificate.report()


def test_programs_without_custom_calls_have_none() -> None:
    executable = read(jax.jit(lambda x: jnp.tanh(x) * 2).lower(ARGS[2]).compile())
    assert neighbours(executable, live_values(executable)) == ()
