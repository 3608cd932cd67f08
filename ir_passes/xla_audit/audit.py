"""Audit of XLA's scheduled HLO and buffer assignment against a contract.

The proof covers the jaxpr; tests sample the machine code.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ir_passes.contract.contract import BoundContract
from ir_passes.contract.statements import AuditClaim, Statement
from ir_passes.jaxpr.collectives import Collective, Scheduled
from ir_passes.xla_audit.collectives import collectives
from ir_passes.xla_audit.dataflow import LiveValues, in_place_hazards, live_values
from ir_passes.xla_audit.findings import AuditError, Finding, FindingKind, hlo_errors, where
from ir_passes.xla_audit.hlo import read, shardings
from ir_passes.xla_audit.memory import misplaced, neighbours, overlaps, scratch_lower_bound
from ir_passes.xla_audit.pool_copies import COMPILE_CALL, PoolCopy, whole_pools
from ir_passes.xla_audit.pool_copies import findings as pool_findings
from ir_passes.xla_audit.program import CPU, GPU, TPU, Executable

ALIGNMENT = {CPU: 64, GPU: 256, TPU: 1 << 14}
"""Platform -> alignment in bytes of values in scratch."""
REFUTED_BY = {
    AuditClaim.POOLS_IN_PLACE: {FindingKind.NOT_IN_PLACE, FindingKind.WRONG_SUCCESSOR, FindingKind.OVERWRITTEN},
    AuditClaim.NO_POOL_COPIES: {FindingKind.POOL_COPY, FindingKind.SECOND_POOL},
    AuditClaim.DISJOINT_BUFFERS: {
        FindingKind.OVERLAP,
        FindingKind.UNPLACED,
        FindingKind.MISPLACED,
        FindingKind.CARRY_MOVED,
    },
    AuditClaim.NO_READ_AFTER_WRITE: {FindingKind.READ_AFTER_WRITE},
    AuditClaim.COLLECTIVES: {FindingKind.COLLECTIVE, FindingKind.MISSING_COLLECTIVE},
    AuditClaim.SCRATCH: {FindingKind.SCRATCH},
}
"""Claim -> findings that refute it."""


@dataclass(frozen=True)
class AuditReport:
    """Outcome of an audit.

    Attributes:
        copies: copies of whole pools.
        schedule: collectives in execution order.
        neighbours: values next to results of custom calls in memory.
        values: number of compared values.
        temp_lower_bound: peak of live scratch in XLA's schedule, in bytes.
        fingerprint: of the program, equal in every process.
        uncovered: `NotCovered` properties.
    """

    findings: tuple[Finding, ...]
    copies: tuple[PoolCopy, ...]
    schedule: tuple[Collective, ...]
    neighbours: tuple[str, ...]
    values: int
    temp_bytes: int
    temp_lower_bound: int
    fingerprint: str
    uncovered: tuple[Statement, ...]
    seconds: float

    @property
    def audited(self) -> tuple[Statement, ...]:
        """`AuditClaim`s without a refuting finding."""
        faults = {finding.kind for finding in self.findings}
        return tuple(claim.statement() for claim, kinds in REFUTED_BY.items() if not kinds & faults)

    def require(self) -> "AuditReport":
        """Return this report, or raise AuditError with all findings."""
        if self.findings:
            raise AuditError(self.findings)
        return self


def audit(
    compiled: jax.stages.Compiled,
    bound: BoundContract,
    *,
    dump: bytes | None = None,
    mesh: jax.sharding.Mesh | None = None,
    **options: Any,
) -> AuditReport:
    """Audit a compiled step; raises HloError if a part of the program is not exposed.

    Args:
        dump: HloProto, if the executable does not expose its buffer assignment.
        mesh: devices, if several.
        options: `axes`, `may_copy`, `temp_ratio`, `scheduled` and `call` of `audit_executable`.
    """
    start = time.perf_counter()
    sizes = [(str(name), int(size)) for name, size in mesh.shape.items()] if mesh is not None else []
    report = audit_executable(read(compiled, dump), bound, sizes, **options)
    findings = (*report.findings, *_split_otherwise(compiled, bound))
    return replace(report, findings=findings, seconds=time.perf_counter() - start)


@hlo_errors("XLA's program")
def audit_executable(
    executable: Executable,
    bound: BoundContract,
    mesh: Sequence[tuple[str, int]] = (),
    axes: Sequence[str] = (),
    may_copy: Sequence[str] = (),
    temp_ratio: float = 1.5,
    scheduled: Sequence[Scheduled] = (),
    call: str = COMPILE_CALL,
) -> AuditReport:
    """Audit an executable; raises HloError for inconsistent parts.

    Args:
        mesh: axis names and sizes, fastest last.
        axes, may_copy, temp_ratio: as for `compile_step`; the ratio is to the aligned lower bound.
        scheduled: collectives of the traced program (`collectives.schedule_of`).
        call: the caller's call in remedies, with braces for an argument.
    """
    start = time.perf_counter()
    live = live_values(executable)
    pools = whole_pools(executable, bound, live)
    schedule, undeclared = collectives(executable, live, mesh, axes, scheduled)
    lower = scratch_lower_bound(executable, live)
    findings = [
        *io_aliases(executable, bound),
        *pool_findings(pools, executable, bound, may_copy, call),
        *overlaps(executable, live),
        *misplaced(executable, live),
        *_hazards(executable, live),
        *undeclared,
        *_scratch(executable, live, lower, temp_ratio),
    ]
    return AuditReport(
        tuple(findings),
        tuple(pool for pool in pools if pool.copied),
        tuple(schedule),
        neighbours(executable, live),
        len(live.values),
        executable.temp_bytes,
        lower,
        executable.fingerprint,
        live.uncovered,
        time.perf_counter() - start,
    )


def io_aliases(executable: Executable, bound: BoundContract) -> Iterator[Finding]:
    """Yield pools without an in-place successor, and other overwritten inputs."""
    into = executable.module.aliases
    for i, pool in enumerate(bound.inputs):
        number = executable.parameters.get(i)
        output = None if number is None else into.get((number, ()))
        got = None if output is None else output[0] if output else 0
        successor = bound.successors.get(i)
        if got == successor:
            continue
        main = executable.module.main
        place = pool.path if number is None else where(main.parameters[number], executable.module)
        if successor is None:
            assert got is not None
            kind = FindingKind.OVERWRITTEN
            message = f"{pool.path} has no successor, but {bound.outputs[got].path} is written into its bytes"
            remedy = "Donate only arguments whose successors the contract declares."
        elif got is not None:
            kind, path = FindingKind.WRONG_SUCCESSOR, bound.outputs[successor].path
            message = f"{pool.path} must become {path} in place, but its bytes take {bound.outputs[got].path}"
            remedy = (
                "Return the pools in the order of their arguments: JAX gives a donated array to the first output that "
                "has its shape and dtype."
            )
        elif number is None:
            kind, place, path = FindingKind.NOT_IN_PLACE, main.name, bound.outputs[successor].path
            message = f"{pool.path} is never read, so {path} does not take its bytes"
            remedy = "Write the successor as an update of the pool."
        else:
            kind, path = FindingKind.NOT_IN_PLACE, bound.outputs[successor].path
            message = f"{path} must take the bytes of {pool.path}, but the pool is not donated or no output can use it"
            remedy = (
                "Pass the pool's argument in donate_argnums and return its successor in the same shape, dtype and "
                "sharding."
            )
        yield Finding(kind, place, message, remedy, (pool.path,))


def _split_otherwise(compiled: jax.stages.Compiled, bound: BoundContract) -> Iterator[Finding]:
    for donor, successor in bound.successors.items():
        sharding, new_sharding = shardings(compiled, donor, successor)
        if sharding is not None and not sharding.is_equivalent_to(new_sharding, len(bound.inputs[donor].shape)):
            path, old = bound.outputs[successor].path, bound.inputs[donor].path
            yield Finding(
                FindingKind.NOT_IN_PLACE,
                path,
                f"devices have {path} split as {new_sharding}, expected as {old}, which is split as {sharding}",
                "Give the pool's result the out_spec of its in_spec; an example argument without a sharding may be "
                "anywhere.",
                (old,),
            )


def _hazards(executable: Executable, live: LiveValues) -> list[Finding]:
    module = executable.module
    return [
        Finding(
            FindingKind.READ_AFTER_WRITE,
            where(hazard.instruction, module),
            f"its result is written over operand {hazard.operand}, which it reads at other positions by "
            f"{where(hazard.through, module)}",
            "openxla/xla#49176: spell a shift as concatenate([state[:, 1:], new[:, None]], axis=1), without a reshape "
            "after it, and never as an update of the array that it reads.",
        )
        for hazard in in_place_hazards(executable, live)
    ]


def _scratch(executable: Executable, live: LiveValues, lower: int, ratio: float) -> list[Finding]:
    limit = ratio * lower + ALIGNMENT.get(executable.platform, ALIGNMENT[CPU]) * len(live.values)
    if executable.temp_bytes <= limit:
        return []
    return [
        Finding(
            FindingKind.SCRATCH,
            executable.module.name,
            f"the program needs {executable.temp_bytes} bytes of scratch, {executable.temp_bytes / max(lower, 1):.2f} "
            f"times the {lower} that are live at once; expected at most {ratio} times",
            "Compile with another memory schedule, or raise temp_ratio if the memory is there.",
        )
    ]
