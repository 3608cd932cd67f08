"""The part of a compilation before XLA: a graph is proved, rewritten, and reproved."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ir_passes.compile.certificate import Certificate
from ir_passes.contract.statements import Statement
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.timing import Clock, paused
from ir_passes.proof import lane_proof
from ir_passes.proof.lane_proof import Proof
from ir_passes.proof.violations import IsolationError
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import PassPipeline, PassReport

Certify = Literal["error", "warn", "off"]


class CertificationWarning(UserWarning):
    """A fault of a step that runs despite it, because of `certify="warn"`."""


@dataclass(frozen=True)
class Proved:
    """A graph with its proof, or the earlier certificate that holds for it.

    Attributes:
        graph: the graph to compile.
        proof: proof of `graph`; None if there is no proof.
        reused: an earlier certificate of the same program, instead of a proof.
        passes: the effect of each rewrite.
        faults: the reasons for a missing proof or missing rewrites.
    """

    graph: Graph
    proof: Proof | None = None
    reused: Certificate | None = None
    passes: tuple[PassReport, ...] = ()
    faults: tuple[Statement, ...] = ()


def prove_graph(
    graph: Graph, passes: tuple[Pass, ...], certify: Certify, stored: Certificate | None, clock: Clock
) -> Proved:
    """Prove a graph and rewrite it.

    Args:
        graph: the traced graph.
        certify: "off" leaves the graph unchanged; "warn" warns of violations, and then rewrites nothing.
        stored: a certificate of this graph, contract and compiler. If the rewrites lead to the program that it names,
            that program was proved.
        clock: adds the seconds of "prove" and "rewrite".

    Raises:
        IsolationError: if `certify` is "error" and the graph, or a graph that a rewrite returned, is not proved.
    """
    if certify == "off":
        return Proved(graph)
    with paused():
        return _prove(graph, passes, certify, stored, clock)


def _prove(
    graph: Graph, passes: tuple[Pass, ...], certify: Certify, stored: Certificate | None, clock: Clock
) -> Proved:
    if stored is not None:
        rewritten = clock.time("rewrite", PassPipeline(passes).run, graph)
        if clock.time("prove", fingerprint, rewritten.graph.program) == stored.fingerprints.compiled:
            return Proved(rewritten.graph, reused=stored, passes=rewritten.reports)
    proofs: list[Proof] = []

    def check(rewritten_graph: Graph) -> None:
        proofs.append(clock.time("prove", lane_proof.prove_jaxpr, rewritten_graph.program, rewritten_graph.bound))

    try:
        rewritten = clock.time("rewrite", PassPipeline(passes, check).run, graph)
    except IsolationError as error:
        if certify == "error":
            raise
        faults = tuple(_fault(violation.statement, error) for violation in error.violations)
        warn(faults)
        return Proved(graph, proofs[0] if proofs else None, faults=faults)
    return Proved(rewritten.graph, proofs[-1], passes=rewritten.reports)


def warn(faults: Sequence[Statement]) -> None:
    """Give one warning for each fault."""
    for fault in faults:
        warnings.warn(f"{fault.id}: {fault.sentence}", CertificationWarning, stacklevel=4)


def _fault(fault: Statement, error: Exception) -> Statement:
    """Return the fault with the notes of its error: the notes name the rewrite."""
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    return replace(fault, sentence=fault.sentence + notes)
