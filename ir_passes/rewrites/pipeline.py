"""Passes in order, with a check of each changed graph."""

from collections.abc import Callable
from dataclasses import dataclass

from ir_passes.jaxpr import ir
from ir_passes.rewrites import DEFAULT_PASSES
from ir_passes.rewrites.graph import Graph, Pass


class PassError(ValueError):
    """A pass returned an invalid graph, or two passes have the same name."""


@dataclass(frozen=True)
class PassReport:
    """Effect of a pass; `summary` is one line."""

    name: str
    changed: bool
    summary: str

    def __str__(self) -> str:
        return f"{self.name}: {self.summary}"


@dataclass(frozen=True)
class Rewritten:
    """The last graph of a pipeline, and the reports of its passes in order."""

    graph: Graph
    reports: tuple[PassReport, ...]

    def report(self) -> str:
        return "\n".join(map(str, self.reports))


@dataclass(frozen=True)
class PassPipeline:
    """Passes in order of execution, with different names.

    Attributes:
        check: raises an error for a wrong graph (for example the lane proof). It is called on the input of the first
            changing pass, and on each changed graph; the input of an `only_drops` pass is checked after the drop.
    """

    passes: tuple[Pass, ...] = DEFAULT_PASSES
    check: Callable[[Graph], None] | None = None

    def __post_init__(self) -> None:
        names = [rewrite.name for rewrite in self.passes]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise PassError(f"passes need different names, got {', '.join(repeated)} more than once")

    def run(self, graph: Graph) -> Rewritten:
        """Run every pass.

        Raises:
            PassError: a pass returned an invalid graph, or changed the types of inputs or outputs.
        """
        unchecked = "the graph that the first pass is given"
        reports: list[PassReport] = []
        for rewrite in self.passes:
            phrases: list[str] = []
            only_drops = getattr(rewrite, "only_drops", False)
            try:
                result = rewrite.run(graph, phrases.append)
            except Exception:  # more likely caused by a wrong input; raise the input's error first
                self._verify(graph, unchecked)
                raise
            changed = result is not graph
            if changed:
                if not only_drops:
                    self._verify(graph, unchecked)
                _check_valid(graph, result, rewrite.name, only_drops)
                unchecked = f"the graph that {rewrite.name} returned"
            summary = "; ".join(phrases) or ("changed" if changed else "nothing to do")
            reports.append(PassReport(rewrite.name, changed, summary))
            graph = result
        self._verify(graph, unchecked)
        return Rewritten(graph, tuple(reports))

    def _verify(self, graph: Graph, description: str) -> None:
        try:
            if self.check is not None:
                self.check(graph)
        except Exception as error:
            error.add_note(f"raised of {description}")
            raise


def _check_valid(graph: Graph, result: Graph, name: str, only_drops: bool) -> None:
    if not only_drops:
        try:
            ir.check(result.program)
        except Exception as error:
            raise PassError(f"{name} returned an invalid graph: {error}") from error
    for variables in ("invars", "outvars"):
        expected, got = (ir.types(getattr(each.program.jaxpr, variables)) for each in (graph, result))
        if expected != got:
            values = "inputs" if variables == "invars" else "outputs"
            raise PassError(f"{name} changed the {values}: expected {expected}, got {got}")
    if graph.bound is not result.bound:
        raise PassError(f"{name} changed the contract; a pass rewrites the program alone")
