"""Drop dead equations."""

from dataclasses import dataclass
from typing import ClassVar

from ir_passes.jaxpr import ir
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.scratch.liveness import bytes_of


@dataclass(frozen=True)
class DropDead:
    """The pass that drops dead equations, in bodies too, with the scratch that they would fill.

    Precondition: none. Postcondition: every equation is needed. Never changes: a value that is needed, inputs, effects
    and their order. Results are bit-identical.
    """

    name: ClassVar[str] = "drop-dead"
    only_drops: ClassVar[bool] = True

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Rewrite the graph (see `Pass.run`)."""
        live = ir.without_dead(graph.program)
        (before, wider), (after, slimmer) = _size(graph.program.jaxpr), _size(live.jaxpr)
        if (before, wider) == (after, slimmer):
            return graph
        dropped = before - after
        freed = _computed(graph.program) - _computed(live)
        say(f"dropped {dropped} dead equations and {freed} bytes of scratch")
        return graph.with_program(live)


def _size(jaxpr: ir.Jaxpr) -> tuple[int, int]:
    """Equations, those of bodies too, and their operands and results: fewer where a loop lost a dead carry."""
    eqns = list(ir.all_eqns(jaxpr))
    return len(eqns), sum(len(eqn.invars) + len(eqn.outvars) for eqn in eqns)


def _computed(program: ir.ClosedJaxpr) -> int:
    return sum(bytes_of(var.aval) for eqn in program.jaxpr.eqns for var in eqn.outvars)
