"""Traced steps as input and output of passes; dead-code elimination."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.rewriting import bytes_of

Say = Callable[[str], None]


def quiet(_: str) -> None:
    """Drop a phrase of a report."""


@dataclass(frozen=True)
class Graph:
    """A traced step with its contract.

    Attributes:
        program: flat equations (`ir.inline`); only scans, whiles, conds and shard_maps have bodies.
    """

    program: ir.ClosedJaxpr = field(repr=False)
    bound: BoundContract

    def with_program(self, program: ir.ClosedJaxpr) -> "Graph":
        """Return another program with the same contract."""
        return replace(self, program=program)


Pass = Callable[..., Graph]
"""A rewrite of a step: `(graph, say=quiet)` -> the rewritten graph, or `graph` itself without a change.

Its name in reports is the function's, in kebab-case; bind options by `functools.partial`. `say` takes short phrases for
the report: each change, and each refusal with its reason. A pass keeps the graph valid, the inputs and outputs, and all
results of active lanes and of rows except the null row. A second run changes nothing. An uncertain pass returns the
graph unchanged and gives the reason.
"""


def drop_dead(graph: Graph, say: Say = quiet) -> Graph:
    """Drop dead equations, also in bodies; inputs, effects and their order stay."""
    live = ir.without_dead(graph.program)
    programs = [list(ir.all_eqns(program.jaxpr)) for program in (graph.program, live)]
    counts = [(len(eqns), sum(len(eqn.invars) + len(eqn.outvars) for eqn in eqns)) for eqns in programs]
    if counts[0] == counts[1]:
        return graph
    sizes = [sum(bytes_of(var.aval) for eqn in p.jaxpr.eqns for var in eqn.outvars) for p in (graph.program, live)]
    say(f"dropped {counts[0][0] - counts[1][0]} dead equations and {sizes[0] - sizes[1]} bytes of scratch")
    return graph.with_program(live)
