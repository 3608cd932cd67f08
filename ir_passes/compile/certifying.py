"""The certificate of a compilation, made of the results of its phases."""

import re
from typing import Any

import jax

from ir_passes.compile.certificate import (
    FORMAT,
    Certificate,
    Fingerprints,
    Memory,
    PassEffect,
    PoolVerdict,
    Seconds,
    Versions,
)
from ir_passes.compile.stage import ProvedTrace
from ir_passes.contract.contract import Bound, BoundContract, Lane, Pool
from ir_passes.contract.statements import NEVER_COVERED, NotCovered, Statement
from ir_passes.jaxpr.collectives import Scheduled, schedule_hash
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.mesh import of_one_device
from ir_passes.xla_audit.audit import AuditReport


def make_certificate(
    step: ProvedTrace,
    name: str,
    versions: Versions,
    audit_faults: tuple[Statement, ...],
    scheduled: tuple[Scheduled, ...],
    compiled: jax.stages.Compiled,
    report: AuditReport | None,
    not_audited: str | None,
    seconds: dict[str, float],
) -> Certificate:
    """Make the certificate of one executable.

    Args:
        step: that was compiled.
        name: of the program.
        versions: that it was compiled with.
        scheduled: the collectives of the program, for a step that was not audited.
        not_audited: why it was not.
    """
    schedule = report.schedule if report else tuple(one.collective for one in scheduled)
    proved, bound = step.proved, step.bound
    known = proved.reused or proved.proof
    not_covered = uncovered_by_proof(bound) + ([] if report is None else [*report.uncovered])
    if known is None:
        not_covered.insert(0, NotCovered.ISOLATION.statement())
    if report is None:
        not_covered.insert(0, NotCovered.COMPILED_PROGRAM.statement(why="it was not audited"))
    return Certificate(
        FORMAT,
        name,
        step.certify,
        bound.lanes,
        len(of_one_device(proved.graph.program).jaxpr.eqns),
        versions,
        Fingerprints(
            step.key.traced,
            fingerprint(proved.graph.program),
            step.key.contract,
            step.key.rules,
            report and report.fingerprint,
            schedule_hash(schedule),
        ),
        contract_lines(bound),
        known.proved if known else (),
        report.audited if report else (),
        (),
        not_audited,
        known.assumed if known else (),
        tuple(not_covered),
        proved.faults + audit_faults,
        known.notes if known else (),
        tuple(PassEffect(one.name, one.changed, one.summary) for one in proved.passes),
        tuple(map(str, report.copies)) if report else (),
        tuple(map(str, report.neighbours)) if report else (),
        pool_verdicts(bound, report),
        schedule,
        memory_of(compiled, report),
        Seconds(**seconds),
        proved.reused is not None,
    )


def uncovered_by_proof(bound: BoundContract) -> list[Statement]:
    """Return the properties of a step that its proof does not look at."""
    accepts = any(isinstance(one.entry, Lane) and one.entry.role == "accepted" for one in bound.outputs)
    return [one.statement() for one in ((NotCovered.ACCEPTED_TOKENS_ONLY,) if accepts else ()) + NEVER_COVERED]


def contract_lines(bound: BoundContract) -> tuple[str, ...]:
    """Return one line for all arrays of an argument or output, or of its field, with equal entries."""
    groups: dict[tuple[str, str], list[Bound]] = {}
    for one in (*bound.inputs, *bound.outputs):
        argument = re.match(r"\w+(\[\w+\]|\['\w+'\])?(\.\w+)?", one.path)
        groups.setdefault((argument.group() if argument else one.path, str(one.entry)), []).append(one)
    return tuple(
        f"{where}: {entry}, "
        + (
            f"{one[0].dtype}{list(one[0].shape)}"
            if len(one) == 1
            else f"{len(one)} arrays, {sum(map(_bytes, one))} bytes"
        )
        for (where, entry), one in groups.items()
    )


def pool_verdicts(bound: BoundContract, report: AuditReport | None) -> tuple[PoolVerdict, ...]:
    """Return the verdict on each pool of the arguments."""
    found = [] if report is None else [path for one in report.findings for path in one.pools]
    copies = [] if report is None else [path for one in report.copies for path in one.pools]
    return tuple(
        PoolVerdict(
            one.path,
            bound.outputs[bound.successors[i]].path if i in bound.successors else None,
            _bytes(one),
            found.count(one.path),
            copies.count(one.path),
        )
        for i, one in enumerate(bound.inputs)
        if isinstance(one.entry, Pool)
    )


def memory_of(compiled: jax.stages.Compiled, report: AuditReport | None) -> Memory:
    """Bytes of XLA's executable."""
    analysis: Any = compiled.memory_analysis()

    def read(name: str) -> int:
        return int(getattr(analysis, f"{name}_size_in_bytes", 0))

    return Memory(
        read("temp"),
        None if report is None else report.temp_lower_bound,
        read("argument"),
        read("output"),
        read("alias"),
        0 if report is None else sum(one.bytes for one in report.copies),
    )


def _bytes(one: Bound) -> int:
    count = one.dtype.itemsize
    for size in one.shape:
        count *= size
    return count
