"""Faults of XLA or its caller in a right step: copies, overlaps, collectives."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from audited_steps import (
    LANES,
    ONE,
    STACKED,
    TWO_SWAPPED,
    Step,
    copied_whole,
    fori_loop,
    gather_compute_scatter,
    per_sequence_loop,
    pool,
    pool_as_xs,
    slots,
    stacked,
    two_pools_swapped,
    x,
)
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mutants.mutant import PROGRAMS, Mutant, Tier
from zoo.meshes.sharded import mesh as sharded_mesh
from zoo.meshes.sharded_rows import SPLIT

from ir_passes import AuditError, Lane, LaneContract, Pool, Shared, compile_step
from ir_passes import FindingKind as Found
from ir_passes.xla_audit.audit import audit, audit_executable
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.program import Buffers, Executable, Index, Slice

ARGS = (pool(), slots(), x())
ROWS = LaneContract(inputs=(Pool("p"), Lane()), outputs=(Pool("p"), Lane()))


def require(step: Step) -> Callable[[], Any]:
    return lambda: step.audit().require()


def shifted_in_place(conv: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A shift of convolution inputs that XLA 0.10 to 0.12 read after overwriting."""
    base = conv * 1.5
    return conv.at[:, 0].set(new), base.at[:, 1:].set(base[:, :-1]).reshape((1, *conv.shape))


def shift() -> None:
    """openxla/xla#49176."""
    rng = np.random.default_rng(0)
    args = rng.normal(size=(4, 8, 16)).astype(np.float32), rng.normal(size=(4, 16)).astype(np.float32)
    contract = LaneContract(inputs=(Pool("p"), Lane()), outputs=(Pool("p"), Lane(axis=1)))
    Step(shifted_in_place, contract, args, donate=()).audit().require()


def _moved(executable: Executable, indexes: tuple[int, Index], place: Slice) -> Executable:
    buffers = Buffers(executable.buffers.allocations, dict(executable.buffers.slices) | {indexes: place})
    return dataclasses.replace(executable, buffers=buffers)


def partial_overlap() -> None:
    """Two values with touching lives overlap in part."""
    step = Step(gather_compute_scatter, ONE, ARGS)
    executable = step.executable()
    live = live_values(executable)
    for value in live.values:
        for operand in value.instruction.operands:
            for number in live.of[operand].values():
                other = live.values[number]
                if value.slice and other.slice and other.stop == value.start and other.slice.size > 8:
                    if executable.buffers.allocations[other.slice.allocation].is_temp:
                        place = Slice(other.slice.allocation, other.slice.offset + 4, value.slice.size)
                        broken = _moved(executable, (value.instruction.id, value.index), place)
                        audit_executable(broken, step.bound()).require()


def two_offsets() -> None:
    """One storage gets two offsets: a loop's pool moves between turns."""
    step = Step(fori_loop, ONE, ARGS)
    executable = step.executable()
    loop = next(instruction for instruction in executable.module.instructions.values() if instruction.opcode == "while")
    index, place = next(
        (p, place)
        for p, place in executable.buffers.slices.items()
        if p[0] == loop.id and p[1] and executable.buffers.allocations[place.allocation].parameter is not None
    )
    broken = _moved(executable, index, dataclasses.replace(place, offset=place.offset + 64))
    audit_executable(broken, step.bound()).require()


def overwritten_weight() -> None:
    contract = LaneContract(inputs=(Shared(), Lane()), outputs=(Lane(),))
    args = (jnp.ones((LANES, 64)), jnp.ones((LANES, 64)))
    Step(lambda weight, x: (weight * x,), contract, args).audit().require()


def undeclared_collective() -> None:
    """A sum over lanes that the compiler has made a sum over devices."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    args = tuple(jax.device_put(jnp.ones((8, 16)), sharding) for _ in range(2))
    step = lambda rows, x: (rows + 1.0, x - x.mean(0, keepdims=True))
    audit(Step(step, ROWS, args).compile(), ROWS.bind(step, args), mesh=mesh, axes=()).require()


def copied_by_the_partitioner() -> None:
    """Rows on several devices are copied without shard_map: XLA moves whole pools."""
    program = PROGRAMS["sharded rows copied"]
    pools = NamedSharding(sharded_mesh(2, 2), SPLIT), NamedSharding(sharded_mesh(2, 2), P())
    args = jax.device_put(program.args(), (pools[0], pools[0], pools[1], pools[1]))
    step = lambda target, source, read, write: (target.at[write].set(source[read]),)
    compile_step(step, args, program.contract)


def returned_on_another_split() -> None:
    """A pool split over rows returns with another split outside its bytes."""
    rows, full = (NamedSharding(sharded_mesh(2, 2), spec) for spec in (P("data"), P(None, "data")))
    args = jax.device_put((jnp.ones((4, 4)), jnp.ones((4, 4))), rows)
    step = lambda state, x: (jax.lax.with_sharding_constraint(state + x, full), x * 2.0)
    compile_step(step, args, ROWS, axes=("data",))


def _audit(id: str, source: str, description: str, base: str, attempt: Callable[[], Any], *kinds: Found) -> Mutant:
    return Mutant(id, source, description, base, Tier.AUDIT, None, frozenset(kinds), attempt=attempt, error=AuditError)


MUTANTS = (
    _audit("in-place-shift", "xla#49176, llm-scaler#677", "an in-place fusion reads what it has overwritten",
           "shift of rows", shift, Found.READ_AFTER_WRITE),
    _audit("partial-overlap", "xla#46543", "values that touch in time overlap in part", "gather, compute, scatter",
           partial_overlap, Found.OVERLAP),
    _audit("pool-copied", "xla#45912", "a loop over sequences copies the pool for each of them", "per-sequence loop",
           require(Step(per_sequence_loop, ONE, ARGS)), Found.POOL_COPY),
    _audit("pool-copied-by-scan", "xla#45912", "a scan over the pools of layers copies them", "pool as xs",
           require(Step(pool_as_xs, STACKED, (stacked(), slots(), x()))), Found.POOL_COPY),
    _audit("old-pool-kept", "pytorch#198031", "the old pool is still read when the new one is written",
           "gather, compute, scatter", require(Step(copied_whole, ONE, ARGS)), Found.POOL_COPY),
    _audit("two-offsets", "pytorch#198031", "two names of one storage get two offsets", "loop over lanes", two_offsets,
           Found.CARRY_MOVED),
    _audit("not-donated", "JAX", "the pool is not donated", "gather, compute, scatter",
           require(Step(gather_compute_scatter, ONE, ARGS, donate=())), Found.NOT_IN_PLACE),
    _audit("donors-swapped", "JAX", "two pools get each other's bytes", "two pools",
           require(Step(two_pools_swapped, TWO_SWAPPED, (pool(), pool() + 1.0, slots(), x()), (0, 1))),
           Found.WRONG_SUCCESSOR),
    _audit("weight-overwritten", "JAX", "a weight is donated and overwritten", "row pool", overwritten_weight,
           Found.OVERWRITTEN),
    _audit("undeclared-collective", "SGLang#14811", "a collective over the axis of lanes", "row pool",
           undeclared_collective, Found.COLLECTIVE),
    _audit("copied-by-the-partitioner", "sglang-jax (copy_slots)",
           "rows on several devices are gathered and scattered as XLA sees fit", "sharded rows copied",
           copied_by_the_partitioner, Found.COLLECTIVE),
    _audit("returned-on-another-split", "xla#45912", "a pool comes back split otherwise than it went in", "row pool",
           returned_on_another_split, Found.NOT_IN_PLACE),
)  # fmt: skip
