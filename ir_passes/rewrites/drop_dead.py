"""Drop dead equations."""

from dataclasses import dataclass
from typing import ClassVar

from ir_passes.jaxpr import ir
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.scratch.liveness import bytes_of


@dataclass(frozen=True)
class DropDead:
    """Drop dead equations, also in bodies, with their scratch.

    Inputs, effects and the order of effects stay. Results are bit-identical.
    """

    name: ClassVar[str] = "drop-dead"
    only_drops: ClassVar[bool] = True

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Rewrite the graph (see `Pass.run`)."""
        live = ir.without_dead(graph.program)
        (count, values), (live_count, live_values) = _size(graph.program), _size(live)
        if (count, values) == (live_count, live_values):
            return graph
        freed = _bytes(graph.program) - _bytes(live)
        say(f"dropped {count - live_count} dead equations and {freed} bytes of scratch")
        return graph.with_program(live)


def _size(program: ir.ClosedJaxpr) -> tuple[int, int]:
    """Return the number of equations, also in bodies, and of their operands and results."""
    eqns = list(ir.all_eqns(program.jaxpr))
    return len(eqns), sum(len(eqn.invars) + len(eqn.outvars) for eqn in eqns)


def _bytes(program: ir.ClosedJaxpr) -> int:
    return sum(bytes_of(var.aval) for eqn in program.jaxpr.eqns for var in eqn.outvars)
