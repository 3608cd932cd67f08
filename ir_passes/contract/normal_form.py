"""The normal form in which a traced program is proved, rewritten and compiled: without calls, reshapes row-major.

`lax.reshape(x, sizes, dimensions)` puts the axes of `x` in the order of `dimensions` first. `order="F"` of numpy's
functions and the batching rule of convolutions make such reshapes; each becomes a transpose and a reshape.
"""

from typing import Any

from ir_passes.contract.declared import declaration_of
from ir_passes.jaxpr import ir


def flatten(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return a traced program with every call replaced by its body, but for the functions declared row-wise."""
    program = row_major(program)
    if all(ir.body_of(eqn) is None or declaration_of(eqn) is not None for eqn in program.jaxpr.eqns):
        return program
    return ir.inline(program, keep=lambda eqn: declaration_of(eqn) is not None)


def row_major(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return the same program, its bodies included, without reshapes that transpose.

    Functions that are declared row-wise and opaque calls stay as they are: nobody looks inside. A program that has no
    such reshape is returned itself.
    """
    return _Rewrite().closed(program)


class _Rewrite:
    def __init__(self) -> None:
        self.done: dict[int, tuple[ir.Jaxpr, ir.Jaxpr]] = {}
        """id of a body -> the body, which keeps its id its own, and what takes its place: many calls share one."""

    def closed(self, program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
        jaxpr = self.jaxpr(program.jaxpr)
        return program if jaxpr is program.jaxpr else ir.ClosedJaxpr(jaxpr, program.consts)

    def jaxpr(self, jaxpr: ir.Jaxpr) -> ir.Jaxpr:
        if id(jaxpr) not in self.done:
            eqns = [new for eqn in jaxpr.eqns for new in self.equation(eqn)]
            same = len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
            new = jaxpr if same else jaxpr.replace(eqns=eqns, debug_info=jaxpr.debug_info)
            self.done[id(jaxpr)] = jaxpr, new
        return self.done[id(jaxpr)][1]

    def equation(self, eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
        if eqn.primitive.name == "reshape":
            return _in_two(eqn)
        if eqn.primitive.name in ir.OPAQUE or declaration_of(eqn) is not None:
            return [eqn]
        new = {name: self.value(value) for name, value in eqn.params.items()}
        return [eqn if all(new[name] is value for name, value in eqn.params.items()) else eqn.replace(params=new)]

    def value(self, value: Any) -> Any:
        """A parameter with its bodies rewritten; itself where none is."""
        if isinstance(value, ir.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, ir.Jaxpr):
            return self.jaxpr(value)
        if type(value) not in (tuple, list):
            return value
        new = [self.value(item) for item in value]
        return value if all(a is b for a, b in zip(new, value, strict=True)) else type(value)(new)


def _in_two(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
    """A reshape, with a transpose before it where it has `dimensions`."""
    dimensions = eqn.params["dimensions"]
    if dimensions is None:
        return [eqn]
    params, (x,) = eqn.params | {"dimensions": None}, eqn.invars
    order = tuple(map(int, dimensions))
    if order == tuple(range(len(order))):
        return [eqn.replace(params=params)]
    turned, between = ir.transpose(x, order, eqn)
    return [turned, eqn.replace(invars=[between], params=params)]
