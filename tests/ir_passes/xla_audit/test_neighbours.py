"""The audit names what lies beside the results of calls that XLA does not look into."""

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


@pytest.mark.parametrize(("places", "allocation", "before", "behind"), PLACES.values(), ids=PLACES)
def test_nearest_live_values_of_the_same_allocation(program, places, allocation, before, behind) -> None:
    """One result of 64 bytes at byte 128, and others that are put around it."""
    executable, live = program
    (call,) = [one for one in live.executed if one.opcode == "custom-call"]
    found = live.values[live.of[call.id][()]]
    result = replace(found, slice=Slice(0, 128, 64))
    others = [replace(live.values[0], slice=Slice(allocation, at, size), stop=result.start) for at, size in places]
    dead = [
        replace(result, slice=Slice(0, at, 8), start=result.start + moved, stop=result.start + moved)
        for at in (120, 192)
        for moved in (-1, 1)
    ]
    (one,) = neighbours(executable, replace(live, values=(result, *others, *dead), of={call.id: {(): 0}}))
    assert [side and side[1] for side in (one.before, one.behind)] == [before, behind]
    assert all(side is None or side[0] == str(others[0]) for side in (one.before, one.behind))


def test_certificates_say_what_a_callback_would_reach() -> None:
    contract = LaneContract((Pool("a"), SlotMap("a", 9), Lane()), (Lane(), Pool("a")), opaque={"host": DOUBLED})
    certificate = compile_step(step, ARGS, contract).certificate
    assert certificate.holds and len(certificate.neighbours) == 1
    assert "callback writes pure_callback" in certificate.neighbours[0]
    assert "next to the results of custom calls:" in certificate.report()


def test_programs_without_custom_calls_have_none() -> None:
    executable = read(jax.jit(lambda x: jnp.tanh(x) * 2).lower(ARGS[2]).compile())
    assert neighbours(executable, live_values(executable)) == ()
