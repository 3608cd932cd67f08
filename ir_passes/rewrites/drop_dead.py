"""Drop what no output needs."""

from dataclasses import dataclass
from typing import ClassVar

from ir_passes import ir
from ir_passes.graph import Graph, Say, quiet
from ir_passes.liveness import bytes_of


@dataclass(frozen=True)
class DropDead:
    """Drops equations that no output and no effect needs, in bodies too, with the scratch that they would fill.

    Precondition: none. Postcondition: every equation is needed. Never changes: a value that is needed, inputs, effects
    and their order. Results are bit-identical.
    """

    name: ClassVar[str] = "drop-dead"
    only_drops: ClassVar[bool] = True

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """As `Pass.run`."""
        live = ir.without_dead(graph.program)
        dropped = ir.count(graph.program.jaxpr) - ir.count(live.jaxpr)
        slimmer = _width(graph.program.jaxpr) - _width(live.jaxpr)
        if not dropped and not slimmer:
            return graph
        freed = _computed(graph.program) - _computed(live)
        say(f"dropped {dropped} dead equations and {freed} bytes of scratch")
        return graph.with_program(live)


def _width(jaxpr: ir.Jaxpr) -> int:
    """Operands and results of all equations: fewer where a loop lost a dead carry."""
    return sum(
        len(eqn.invars) + len(eqn.outvars) + sum(_width(body.jaxpr) for body in ir.sub_jaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def _computed(program: ir.ClosedJaxpr) -> int:
    return sum(bytes_of(var.aval) for eqn in program.jaxpr.eqns for var in eqn.outvars)
