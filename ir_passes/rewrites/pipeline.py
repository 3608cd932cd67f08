"""The pass pipeline: passes run one after the other, each followed by a check."""

from collections.abc import Callable
from dataclasses import dataclass

from ir_passes.jaxpr import ir
from ir_passes.rewrites import DEFAULT_PASSES
from ir_passes.rewrites.graph import Graph, Pass

__all__ = ["DEFAULT_PASSES", "Graph", "Pass", "PassError", "PassPipeline", "PassReport", "Rewritten"]


class PassError(ValueError):
    """A pass returned an invalid graph, or two passes have one name."""


@dataclass(frozen=True)
class PassReport:
    """The effect of one pass.

    Attributes:
        name: of the pass.
        changed: whether it returned another graph.
        summary: one line.
    """

    name: str
    changed: bool
    summary: str

    def __str__(self) -> str:
        return f"{self.name}: {self.summary}"


@dataclass(frozen=True)
class Rewritten:
    """The outcome of a pipeline: the last graph and a report of every pass, in order."""

    graph: Graph
    reports: tuple[PassReport, ...]

    def report(self) -> str:
        """One line for each pass."""
        return "\n".join(map(str, self.reports))


@dataclass(frozen=True)
class PassPipeline:
    """Passes in the order they run.

    Attributes:
        passes: each with a name of its own.
        check: called on the graph that goes into the first pass that changes something and on what every such pass
            returned; raises what is wrong. The lane proof stands here. Of a graph from which a pass `only_drops`
            equations, what is left is checked alone.
    """

    passes: tuple[Pass, ...] = DEFAULT_PASSES
    check: Callable[[Graph], None] | None = None

    def __post_init__(self) -> None:
        names = [rewrite.name for rewrite in self.passes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PassError(f"passes need different names, got {', '.join(twice)} more than once")

    def run(self, graph: Graph) -> Rewritten:
        """Run every pass.

        Raises:
            PassError: a pass returned an invalid graph or one with other inputs or outputs.
        """
        unchecked = "the graph that the first pass is given"
        reports: list[PassReport] = []
        for one in self.passes:
            said: list[str] = []
            drops = getattr(one, "only_drops", False)
            try:
                result = one.run(graph, said.append)
            except Exception:  # whatever a pass does with a graph that is wrong: then that is what is said
                self._verify(graph, unchecked)
                raise
            changed = result is not graph
            if changed:
                if not drops:
                    self._verify(graph, unchecked)
                _check_valid(graph, result, one, types=not drops)
                unchecked = f"the graph that {one.name} returned"
            summary = "; ".join(said) or ("changed" if changed else "nothing to do")
            reports.append(PassReport(one.name, changed, summary))
            graph = result
        self._verify(graph, unchecked)
        return Rewritten(graph, tuple(reports))

    def _verify(self, graph: Graph, what: str) -> None:
        if self.check is None:
            return
        try:
            self.check(graph)
        except Exception as error:
            error.add_note(f"raised of {what}")
            raise


def _check_valid(before: Graph, after: Graph, one: Pass, types: bool) -> None:
    if types:
        try:
            ir.check(after.program)
        except Exception as error:
            raise PassError(f"{one.name} returned an invalid graph: {error}") from error
    old, new = before.program.jaxpr, after.program.jaxpr
    for what, expected, got in (
        ("inputs", ir.types(old.invars), ir.types(new.invars)),
        ("outputs", ir.types(old.outvars), ir.types(new.outvars)),
    ):
        if expected != got:
            raise PassError(f"{one.name} changed the {what}: expected {expected}, got {got}")
    if before.bound is not after.bound:
        raise PassError(f"{one.name} changed the contract; a pass rewrites the program alone")
