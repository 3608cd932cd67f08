"""Passes in order, with a check of each changed graph."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.tracing import name_of
from ir_passes.rewrites import DEFAULT_PASSES
from ir_passes.rewrites.graph import Graph, Pass, drop_dead


@dataclass(frozen=True)
class PassReport:
    """Effect of a pass; `summary` is one line."""

    name: str
    changed: bool
    summary: str

    def __str__(self) -> str:
        return f"{self.name}: {self.summary}"


def pass_name(rewrite: Pass) -> str:
    """Return the name of a pass in reports, in kebab-case."""
    return name_of(rewrite.func if isinstance(rewrite, partial) else rewrite).replace("_", "-")


def run_passes(
    graph: Graph, passes: tuple[Pass, ...] = DEFAULT_PASSES, check: Callable[[Graph], None] | None = None
) -> tuple[Graph, tuple[PassReport, ...]]:
    """Run passes in order; return the last graph, and a report of each pass.

    Args:
        check: raises an error for a wrong graph (for example the lane proof). It is called on the input of the first
            changing pass, and on each changed graph; the input of `drop_dead` is checked after the drop.

    Raises:
        ValueError: two passes have one name, or a pass returned an invalid graph, or changed the types of inputs or
            outputs.
    """
    names = [pass_name(rewrite) for rewrite in passes]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"passes need different names, got {', '.join(repeated)} more than once")
    changed_by = ""

    def verify(graph: Graph) -> None:
        try:
            (check or (lambda graph: None))(graph)
        except Exception as error:
            if changed_by:
                error.add_note(f"the graph is the result of {changed_by}")
            raise

    reports: list[PassReport] = []
    for name, rewrite in zip(names, passes, strict=True):
        phrases: list[str] = []
        try:
            result = rewrite(graph, phrases.append)
        except Exception:  # more likely caused by a wrong input; raise the input's error first
            verify(graph)
            raise
        changed, only_drops = result is not graph, rewrite is drop_dead
        if changed:
            if not only_drops:
                verify(graph)
            _check_valid(graph, result, name, only_drops)
            changed_by = name
        summary = "; ".join(phrases) or ("changed" if changed else "nothing to do")
        reports.append(PassReport(name, changed, summary))
        graph = result
    verify(graph)
    return graph, tuple(reports)


def _check_valid(graph: Graph, result: Graph, name: str, only_drops: bool) -> None:
    if not only_drops:
        try:
            ir.check(result.program)
        except Exception as error:
            raise ValueError(f"{name} returned an invalid graph: {error}") from error
    for variables in ("invars", "outvars"):
        expected, got = (ir.types(getattr(each.program.jaxpr, variables)) for each in (graph, result))
        if expected != got:
            values = "inputs" if variables == "invars" else "outputs"
            raise ValueError(f"{name} changed the {values}: expected {expected}, got {got}")
    if graph.bound is not result.bound:
        raise ValueError(f"{name} changed the contract; a pass rewrites the program alone")
