"""The input and output of a pass: a traced step with its contract."""

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
        program: flat list of equations (`ir.inline`); only scans, whiles, conds and shard_maps have bodies.
        bound: the contract of the program's inputs and outputs.
    """

    program: ir.ClosedJaxpr = field(repr=False)
    bound: BoundContract

    def with_program(self, program: ir.ClosedJaxpr) -> "Graph":
        """Return another program with the same contract."""
        return replace(self, program=program)


class Pass(Protocol):
    """A rewrite of a step: a frozen dataclass with the options as fields.

    A pass keeps the graph valid, the inputs and outputs, and all results of active lanes and of rows except the null
    row. A second run changes nothing. An uncertain pass returns the graph unchanged and gives the reason. A pass with
    `only_drops: ClassVar = True` removes unneeded equations from any graph and does nothing else.
    """

    name: ClassVar[str]
    """Name of the pass, in kebab-case."""

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Return the rewritten graph, or `graph` itself without a change.

        Args:
            graph: the step.
            say: takes short phrases for the one-line report: each change, and each refusal with its reason.
        """
        ...
