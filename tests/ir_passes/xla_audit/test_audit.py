"""The audit passes steps compiled as contracted and names faults of others."""

import dataclasses
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audited_steps import (
    LANES,
    ONE,
    ROW,
    ROWS,
    SLOTS,
    STACKED,
    TWO_SWAPPED,
    Step,
    copied_whole,
    gather_compute_scatter,
    masked_whole,
    per_sequence_loop,
    pool,
    pool_as_xs,
    right_steps,
    row_pool_twice,
    slots,
    stacked,
    two_pools_swapped,
    x,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ir_passes import AuditClaim, Lane, LaneContract, Pool, Shared
from ir_passes.xla_audit.audit import REFUTED_BY, audit, audit_executable
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.findings import AuditError, FindingKind, where
from ir_passes.xla_audit.program import Buffers, Executable, Index, Slice

RIGHT = right_steps()
ARGS = (pool(), slots(), x())


@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_pass(name: str) -> None:
    report = RIGHT[name].audit()
    assert report.require() is report
    assert (report.findings, report.copies, report.schedule, report.uncovered) == ((), (), (), ())
    assert report.values > 5
    assert report.temp_lower_bound <= report.temp_bytes
    assert re.fullmatch("[0-9a-f]{64}", report.fingerprint)


def test_audit_of_a_compiled_executable() -> None:
    step = RIGHT["gather, compute, scatter"]
    assert audit(step.compile(), step.bound()).require().seconds > 0


def test_per_sequence_loop_copies_the_pool() -> None:
    report = Step(per_sequence_loop, ONE, ARGS).audit()
    assert len(report.copies) >= LANES
    assert {copy.pools for copy in report.copies} == {("args[0]",)}
    assert {copy.bytes for copy in report.copies} == {pool().nbytes}
    assert not any(copy.looped for copy in report.copies)
    lines = {int(copy.source.rsplit(":", 1)[1]) for copy in report.copies}
    first = per_sequence_loop.__code__.co_firstlineno
    assert lines <= set(range(first, first + 7))
    with pytest.raises(AuditError) as raised:
        report.require()
    assert raised.value.findings == report.findings
    assert [finding.kind for finding in report.findings] == [FindingKind.POOL_COPY]  # all copies in one finding
    assert all(f"%{copy.instruction}" in report.findings[0].where for copy in report.copies)
    assert "audited_steps.py" in str(raised.value)


NEVER_READ = lambda pool, slots, x: (jnp.zeros((SLOTS, *ROW)).at[slots].set(x), x.sum((1, 2)))
WEIGHTED = LaneContract(inputs=(Shared(), Lane()), outputs=(Lane(),))
WHOLE = {FindingKind.POOL_COPY, FindingKind.SECOND_POOL}
FAULTY: dict[str, tuple[Step, set[Any], list[str]]] = {
    "scan over the pool": (Step(pool_as_xs, STACKED, (stacked(), slots(), x())), WHOLE, ["args[0]"]),
    "old pool read after the write": (Step(copied_whole, ONE, ARGS), {FindingKind.POOL_COPY}, ["args[0]"]),
    "new rows computed twice": (
        Step(row_pool_twice, ROWS, (jnp.zeros((LANES, *ROW)), jnp.ones(LANES, bool), x())),
        {FindingKind.POOL_COPY}, ["args[0]"],
    ),
    "pool computed elsewhere": (Step(masked_whole, ONE, ARGS), {FindingKind.SECOND_POOL}, ["args[0]"]),
    "pool that is not donated": (
        Step(gather_compute_scatter, ONE, ARGS, donate=()), {FindingKind.NOT_IN_PLACE}, ["args[0]"],
    ),
    "pool that is never read": (Step(NEVER_READ, ONE, ARGS, donate=()), {FindingKind.NOT_IN_PLACE}, ["args[0]"]),
    "swapped outputs": (
        Step(two_pools_swapped, TWO_SWAPPED, (pool(), pool() + 1.0, slots(), x()), (0, 1)),
        {FindingKind.WRONG_SUCCESSOR}, ["args[0]", "args[1]"],
    ),
    "weight that is overwritten": (
        Step(lambda weight, x: (weight * x,), WEIGHTED, (jnp.ones((LANES, 64)), jnp.ones((LANES, 64)))),
        {FindingKind.OVERWRITTEN}, ["args[0]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("step", "kinds", "pools"), FAULTY.values(), ids=FAULTY)
def test_faulty_steps(step: Step, kinds: set[Any], pools: list[str]) -> None:
    findings = [finding for finding in step.audit().findings if finding.kind in kinds]
    assert {finding.kind for finding in findings} == kinds
    assert sorted({pool for finding in findings for pool in finding.pools}) == pools


def test_copy_in_a_loop_is_said_to_be_in_one() -> None:
    def step(pools, slots, x):
        def body(carry, layer):
            pools, total = carry
            new = pools.at[layer, slots].set(x)
            return (new, total + (pools[:, ::-1] * new).sum()), None

        (pools, total), _ = jax.lax.scan(body, (pools, 0.0), jnp.arange(3, dtype=jnp.int32))
        return pools, x * total

    assert any(copy.looped for copy in Step(step, STACKED, (stacked(), slots(), x())).audit().copies)


def test_scratch_above_the_bound() -> None:
    big = Step(
        lambda p, x: (p + 1.0, x @ x.T @ x),
        LaneContract((Pool("p"), Lane()), (Pool("p"), Lane())),
        (jnp.ones((256, 8)), jnp.ones((256, 64))),
    )
    report = big.audit()
    assert not report.findings
    assert report.temp_bytes >= report.temp_lower_bound >= 256 * 256 * 4
    assert [finding.kind for finding in big.audit(temp_ratio=0.5).findings] == [FindingKind.SCRATCH]


def moved(executable: Executable, indexes: tuple[int, Index], place: Slice) -> Executable:
    buffers = Buffers(executable.buffers.allocations, dict(executable.buffers.slices) | {indexes: place})
    return dataclasses.replace(executable, buffers=buffers)


def test_every_temporary_moved_onto_a_live_neighbour_is_found() -> None:
    """Each scratch value is shifted onto the last byte of a live neighbour."""
    step = RIGHT["pool as carry"]
    executable, bound = step.executable(), step.bound()
    live = live_values(executable)
    placed = [value for value in live.values if value.slice and value.array.dtype != "tuple" and value.slice.size]
    tried = 0
    for item in placed:
        for other in placed:
            assert item.slice is not None
            assert other.slice is not None
            joint = (
                item.start < other.stop and other.start < item.stop and item.slice.allocation == other.slice.allocation
            )
            if item is other or not joint or item.slice.overlaps(other.slice):
                continue
            shifted = Slice(item.slice.allocation, other.slice.offset + other.slice.size - 1, item.slice.size)
            broken = audit_executable(moved(executable, (item.instruction.id, item.index), shifted), bound)
            kinds = {finding.kind for finding in broken.findings}
            assert kinds & {FindingKind.OVERLAP, FindingKind.MISPLACED}, f"{item} onto {other}"
            tried += 1
    assert tried > 5


def test_results_of_a_loop_outlive_its_condition() -> None:
    """`last` is unread in the body but returned after the condition's last run."""

    def step(pool, x):
        last = jax.lax.fori_loop(0, jnp.int32(x[0, 0]), lambda i, _: x * i.astype(jnp.float32), jnp.sin(x))
        return pool + 1.0, last

    contract = LaneContract((Pool("p"), Lane()), (Pool("p"), Lane()))
    looped = Step(step, contract, (jnp.ones((LANES, 8)), jnp.ones((LANES, 16))))
    executable = looped.executable()
    assert not audit_executable(executable, looped.bound()).findings
    module = executable.module
    loop = next(instruction for instruction in module.instructions.values() if instruction.opcode == "while")
    index = next(
        index
        for index, array in loop.arrays.items()
        if array.dims == (LANES, 16) and (loop.id, index) in executable.buffers.slices
    )
    last = executable.buffers.slices[(loop.id, index)]
    test = module.computations[loop.called[1]].root
    broken = moved(executable, (test, ()), Slice(last.allocation, last.offset, 1))
    assert FindingKind.OVERLAP in {finding.kind for finding in audit_executable(broken, looped.bound()).findings}


def test_value_outside_its_allocation_or_too_small() -> None:
    step = RIGHT["gather, compute, scatter"]
    executable = step.executable()
    index, place = next(
        (position, place)
        for position, place in executable.buffers.slices.items()
        if place.size >= LANES * 64 * 4 and executable.buffers.allocations[place.allocation].is_temp
    )
    size = executable.buffers.allocations[place.allocation].size
    for wrong in (Slice(place.allocation, size - 4, place.size), Slice(place.allocation, place.offset, 4)):
        findings = audit_executable(moved(executable, index, wrong), step.bound()).findings
        assert FindingKind.MISPLACED in {finding.kind for finding in findings}
    slices = dict(executable.buffers.slices)
    del slices[index]
    missing = dataclasses.replace(executable, buffers=Buffers(executable.buffers.allocations, slices))
    assert FindingKind.UNPLACED in {finding.kind for finding in audit_executable(missing, step.bound()).findings}


def test_argument_that_the_caller_keeps_is_never_overwritten() -> None:
    """The last written value is moved onto an argument that is no longer read."""
    step = RIGHT["gather, compute, scatter"]
    executable = step.executable()
    main = executable.module.main
    place = executable.buffers.slices[(main.parameters[2].id, ())]
    broken = moved(executable, (main.root, ()), Slice(place.allocation, 0, 16))
    (finding,) = audit_executable(broken, step.bound()).findings
    assert finding.kind is FindingKind.OVERLAP
    assert main.parameters[2].name in finding.message


def test_what_xla_made_inside_a_fusion_is_named_for_its_neighbours() -> None:
    """The finding about an expanded scatter has one name and source, and no duplicate."""
    module = RIGHT["gather, compute, scatter"].executable().module
    tried = 0
    for fusion in (each for each in module.computations.values() if each.is_fusion):
        named = {certificate.id for certificate in fusion.instructions if certificate.source}
        assert named and not named & module.instructions.keys()
        for instruction in fusion.instructions:
            if named.intersection(instruction.operands):
                assert "audited_steps.py:" in where(dataclasses.replace(instruction, op_name="", source=""), module)
                tried += 1
    assert tried


MESH_CONTRACT = LaneContract(inputs=(Pool("p"), Lane()), outputs=(Pool("p"), Lane()))


def test_collectives_and_their_axes() -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("lane", "model"))

    def step(pool, x):
        @jax.shard_map(
            mesh=mesh,
            in_specs=PartitionSpec("lane", "model"),
            out_specs=PartitionSpec("lane", "model"),
            check_vma=False,
        )
        def mix(x):
            swapped = jax.lax.ppermute(x, "lane", [(0, 1), (1, 0)])
            return jax.lax.psum(x, "model") + swapped

        return pool + 1.0, mix(x)

    sharding = NamedSharding(mesh, PartitionSpec("lane", "model"))
    args = tuple(jax.device_put(jnp.ones((8, 16)), sharding) for _ in range(2))
    compiled = Step(step, MESH_CONTRACT, args).compile()
    bound = MESH_CONTRACT.bind(step, args)
    report = audit(compiled, bound, mesh=mesh, axes=("lane", "model")).require()
    assert {item.operation: (item.axes, item.devices) for item in report.schedule} == {
        "psum": (("model",), 4),
        "ppermute": (("lane",), 2),
    }
    (finding,) = audit(compiled, bound, mesh=mesh, axes=("model",)).findings
    assert finding.kind is FindingKind.COLLECTIVE
    assert "collective-permute" in finding.where and "test_audit.py" in finding.where
    assert len(audit(compiled, bound).findings) == 2


def test_every_finding_refutes_one_claim() -> None:
    assert Counter(kind for kinds in REFUTED_BY.values() for kind in kinds) == dict.fromkeys(FindingKind, 1)
    assert [*REFUTED_BY] == [*AuditClaim]
