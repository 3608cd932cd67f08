"""Proof and rewrites of a graph before XLA."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ir_passes.compile.certificate import Certificate
from ir_passes.contract.statements import Statement
from ir_passes.files.user_warnings import warn_user
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.timing import Timings, paused, timed
from ir_passes.proof import lane_proof
from ir_passes.proof.lane_proof import Proof
from ir_passes.proof.violations import IsolationError
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import PassReport, run_passes

Certify = Literal["error", "warn", "off"]
CERTIFY: tuple[Certify, ...] = get_args(Certify)


class CertificationWarning(UserWarning):
    """A fault of a step with `certify="warn"`."""


@dataclass(frozen=True)
class Proved:
    """A graph with its proof or an earlier certificate.

    Attributes:
        graph: to compile.
        proof: of `graph`.
        reused: earlier certificate of this program, instead of a proof.
        passes: effects of rewrites.
        faults: reasons for a missing proof or rewrite.
    """

    graph: Graph
    proof: Proof | None = None
    reused: Certificate | None = None
    passes: tuple[PassReport, ...] = ()
    faults: tuple[Statement, ...] = ()


def require_certify(certify: Any) -> None:
    """Raise ValueError for an unknown setting of `certify`."""
    if certify not in CERTIFY:
        raise ValueError(f"certify: expected one of {', '.join(CERTIFY)}, got {certify!r}")


@paused()
def prove_graph(
    graph: Graph, passes: tuple[Pass, ...], certify: Certify, stored: Certificate | None, seconds: Timings
) -> Proved:
    """Prove a graph, rewrite it, and prove the result.

    Args:
        certify: "off" leaves the graph unchanged; "warn" rewrites nothing after violations.
        stored: certificate of this graph, contract and compiler; replaces a proof if it names the rewritten program.

    Raises:
        IsolationError: no proof of the graph or a rewritten graph, if `certify` is "error".
    """
    if certify == "off":
        return Proved(graph)
    if stored is not None:
        rewritten, reports = timed(seconds, "rewrite", run_passes, graph, passes)
        if timed(seconds, "prove", fingerprint, rewritten.program) == stored.fingerprints.compiled:
            return Proved(rewritten, reused=stored, passes=reports)
    proofs: list[Proof] = []

    def check(graph: Graph) -> None:
        proofs.append(timed(seconds, "prove", lane_proof.prove_jaxpr, graph.program, graph.bound))

    try:
        rewritten, reports = timed(seconds, "rewrite", run_passes, graph, passes, check)
    except IsolationError as error:
        if certify == "error":
            raise
        faults = tuple(_fault(violation.statement, error) for violation in error.violations)
        warn(faults)
        return Proved(graph, proofs[0] if proofs else None, faults=faults)
    return Proved(rewritten, proofs[-1], passes=reports)


def warn(faults: Sequence[Statement]) -> None:
    for fault in faults:
        warn_user(f"{fault.id}: {fault.sentence}", CertificationWarning)


def _fault(fault: Statement, error: Exception) -> Statement:
    """Append the error's notes with the name of the rewrite."""
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    return replace(fault, sentence=fault.sentence + notes)
