"""A step as the passes see it: its equations and its contract."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr import ir

Say = Callable[[str], None]


def quiet(_: str) -> None:
    """Drop a line of a report."""


@dataclass(frozen=True)
class Graph:
    """A traced step.

    Attributes:
        program: one flat list of equations (`ir.inline`); only scans, whiles, conds and shard_maps have bodies.
        bound: the contract, laid out over the program's inputs and outputs.
    """

    program: ir.ClosedJaxpr = field(repr=False)
    bound: BoundContract

    def with_program(self, program: ir.ClosedJaxpr) -> "Graph":
        """Return the same contract over another program."""
        return replace(self, program=program)


class Pass(Protocol):
    """A rewrite of a step: a frozen dataclass whose fields are its options.

    A valid graph goes in and a valid graph with the same inputs and outputs comes out; what the step computes for
    active lanes and for rows other than the null slot's stays the same. A second run finds nothing to do. Where a pass
    is not sure it leaves the graph as it is and says why. A pass with a class variable `only_drops = True` leaves out
    equations that nothing needs, whatever the graph, and does nothing else.
    """

    name: ClassVar[str]
    """Name of the pass, in kebab-case."""

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Return the rewritten graph, or `graph` itself where there is nothing to do.

        Args:
            graph: the step.
            say: takes short phrases for the one-line report: what was done, and what was left alone and why.
        """
        ...
