"""Audit of a compiled program, and the program to compile if XLA copies a pool."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ir_passes.compile.buffer_assignment import CompiledProgram
from ir_passes.compile.certifying import Audit
from ir_passes.compile.proving import Certify, warn
from ir_passes.compile.stage import ProvedTrace
from ir_passes.contract.contract import BoundContract
from ir_passes.contract.statements import Refusal
from ir_passes.jaxpr.timing import Clock, paused
from ir_passes.proof.lane_proof import prove_jaxpr
from ir_passes.proof.violations import IsolationError
from ir_passes.rewrites import DropDead, WriteInPlace
from ir_passes.rewrites.pipeline import PassPipeline
from ir_passes.xla_audit.audit import audit
from ir_passes.xla_audit.findings import FindingKind
from ir_passes.xla_audit.hlo import HloError

_COPIES = {FindingKind.NOT_IN_PLACE, FindingKind.POOL_COPY, FindingKind.SECOND_POOL}


def audited(program: CompiledProgram, bound: BoundContract, certify: Certify, options: Mapping[str, Any]) -> Audit:
    """Return the audit of a program; raises HloError for an unreadable one if `certify` is "error"."""
    try:
        with paused():
            report = audit(program.compiled, bound, dump=program.dump, **options)
        return Audit(report, tuple(finding.statement for finding in report.findings))
    except HloError as error:
        if certify == "error":
            raise
        return Audit(None, (Refusal.NOT_AUDITED.statement(why=error),), str(error))


def required(result: Audit, certify: Certify) -> Audit:
    """Return an audit without faults; warn, or raise AuditError if `certify` is "error"."""
    if certify == "error" and result.report is not None:
        result.report.require()
    warn(result.faults)
    return result


def has_copies(result: Audit) -> bool:
    return result.report is not None and any(finding.kind in _COPIES for finding in result.report.findings)


def written_in_place(step: ProvedTrace, clock: Clock) -> ProvedTrace | None:
    """Return the step with writes after earlier reads; None for no change or no proof."""
    proved = step.proved
    if not proved.passes:
        return None
    rewritten = clock.time("rewrite", PassPipeline((WriteInPlace(), DropDead())).run, proved.graph)
    if rewritten.graph is proved.graph:
        return None
    try:
        with paused():
            proof = clock.time("prove", prove_jaxpr, rewritten.graph.program, proved.graph.bound)
    except IsolationError:
        return None
    effects = (*proved.passes, rewritten.reports[0])
    return replace(step, proved=replace(proved, graph=rewritten.graph, proof=proof, reused=None, passes=effects))
