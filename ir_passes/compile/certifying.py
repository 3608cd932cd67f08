"""Audit of a compiled program, its rewrite if XLA copies a pool, and the certificate."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from ir_passes.compile.buffer_assignment import CompiledProgram
from ir_passes.compile.certificate import FORMAT, Certificate, Fingerprints, Memory, PoolVerdict, Seconds, Versions
from ir_passes.compile.proving import Certify, warn
from ir_passes.compile.stage import ProvedTrace
from ir_passes.contract.contract import Bound, BoundContract, Lane, Pool
from ir_passes.contract.statements import NEVER_COVERED, NotCovered, Refusal, Statement
from ir_passes.jaxpr.collectives import Scheduled, schedule_hash
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.placement import of_one_device
from ir_passes.jaxpr.rewriting import bytes_of
from ir_passes.jaxpr.timing import Timings, paused, timed
from ir_passes.proof.lane_proof import prove_jaxpr
from ir_passes.proof.violations import IsolationError
from ir_passes.rewrites import drop_dead, write_in_place
from ir_passes.rewrites.pipeline import run_passes
from ir_passes.xla_audit.audit import AuditReport, audit
from ir_passes.xla_audit.findings import FindingKind
from ir_passes.xla_audit.hlo import HloError

_COPIES = {FindingKind.NOT_IN_PLACE, FindingKind.POOL_COPY, FindingKind.SECOND_POOL}


def audited(
    program: CompiledProgram, bound: BoundContract, certify: Certify, options: Mapping[str, Any]
) -> CompiledProgram:
    """Audit a program; raises HloError for an unreadable program if `certify` is "error"."""
    try:
        with paused():
            report = audit(program.compiled, bound, dump=program.dump, **options)
        return replace(program, report=report, faults=tuple(finding.statement for finding in report.findings))
    except HloError as error:
        if certify == "error":
            raise
        return replace(program, not_audited=str(error), faults=(Refusal.NOT_AUDITED.statement(why=error),))


def require_audit(program: CompiledProgram, certify: Certify) -> None:
    """Warn of an audit's faults; raise AuditError if `certify` is "error"."""
    if certify == "error" and program.report is not None:
        program.report.require()
    warn(program.faults)


def has_copies(program: CompiledProgram) -> bool:
    return program.report is not None and any(finding.kind in _COPIES for finding in program.report.findings)


def written_in_place(step: ProvedTrace, seconds: Timings) -> ProvedTrace | None:
    """Return the step with pool writes moved after reads; None if unchanged or unproved."""
    proved = step.proved
    if not proved.passes:
        return None
    graph, reports = timed(seconds, "rewrite", run_passes, proved.graph, (write_in_place, drop_dead))
    if graph is proved.graph:
        return None
    try:
        with paused():
            proof = timed(seconds, "prove", prove_jaxpr, graph.program, graph.bound)
    except IsolationError:
        return None
    effects = (*proved.passes, reports[0])
    return replace(step, proved=replace(proved, graph=graph, proof=proof, reused=None, passes=effects))


def make_certificate(
    step: ProvedTrace,
    versions: Versions,
    scheduled: tuple[Scheduled, ...],
    program: CompiledProgram,
    seconds: dict[str, float],
) -> Certificate:
    """Make the certificate of an executable.

    `scheduled` are its collectives if it was not audited.
    """
    report = program.report
    schedule = report.schedule if report else tuple(entry.collective for entry in scheduled)
    proved, bound = step.proved, step.bound
    proof = proved.reused or proved.proof
    not_covered = uncovered_by_proof(bound) + ([] if report is None else [*report.uncovered])
    if proof is None:
        not_covered.insert(0, NotCovered.ISOLATION.statement())
    if report is None:
        not_covered.insert(0, NotCovered.COMPILED_PROGRAM.statement(why="it was not audited"))
    return Certificate(
        FORMAT,
        step.trace.name,
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
        proof.proved if proof else (),
        report.audited if report else (),
        (),
        program.not_audited,
        proof.assumed if proof else (),
        tuple(not_covered),
        proved.faults + program.faults,
        proof.notes if proof else (),
        proved.passes,
        tuple(map(str, report.copies)) if report else (),
        report.neighbours if report else (),
        pool_verdicts(bound, report),
        schedule,
        memory_of(program.compiled, report),
        Seconds(**seconds),
        proved.reused is not None,
    )


def uncovered_by_proof(bound: BoundContract) -> list[Statement]:
    accepts = any(isinstance(output.entry, Lane) and output.entry.role == "accepted" for output in bound.outputs)
    return [
        property_id.statement()
        for property_id in ((NotCovered.ACCEPTED_TOKENS_ONLY,) if accepts else ()) + NEVER_COVERED
    ]


def contract_lines(bound: BoundContract) -> tuple[str, ...]:
    """Return contract entries; equal entries of an argument or field share a line."""
    groups: dict[tuple[str, str], list[Bound]] = {}
    for bound_array in (*bound.inputs, *bound.outputs):
        argument = re.match(r"\w+(\[\w+\]|\['\w+'\])?(\.\w+)?", bound_array.path)
        groups.setdefault((argument.group() if argument else bound_array.path, str(bound_array.entry)), []).append(
            bound_array
        )
    return tuple(
        f"{where}: {entry}, "
        + (
            f"{arrays[0].dtype}{list(arrays[0].shape)}"
            if len(arrays) == 1
            else f"{len(arrays)} arrays, {sum(map(bytes_of, arrays))} bytes"
        )
        for (where, entry), arrays in groups.items()
    )


def pool_verdicts(bound: BoundContract, report: AuditReport | None) -> tuple[PoolVerdict, ...]:
    faulty = [] if report is None else [path for finding in report.findings for path in finding.pools]
    copies = [] if report is None else [path for copy in report.copies for path in copy.pools]
    return tuple(
        PoolVerdict(
            pool.path,
            bound.outputs[bound.successors[i]].path if i in bound.successors else None,
            bytes_of(pool),
            faulty.count(pool.path),
            copies.count(pool.path),
        )
        for i, pool in enumerate(bound.inputs)
        if isinstance(pool.entry, Pool)
    )


def memory_of(compiled: jax.stages.Compiled, report: AuditReport | None) -> Memory:
    analysis: Any = compiled.memory_analysis()

    def read(name: str) -> int:
        return int(getattr(analysis, f"{name}_size_in_bytes", 0))

    return Memory(
        read("temp"),
        None if report is None else report.temp_lower_bound,
        read("argument"),
        read("output"),
        read("alias"),
        0 if report is None else sum(copy.bytes for copy in report.copies),
    )
