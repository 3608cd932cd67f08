"""The normal form in which a traced program is proved, rewritten and compiled: without calls, reshapes row-major.

`lax.reshape(x, sizes, dimensions)` puts the axes of `x` in the order of `dimensions` first. `order="F"` of numpy's
functions and the batching rule of convolutions make such reshapes; each becomes a transpose and a reshape. A select
between a pool and its successor becomes a guarded write (`ir_passes.contract.guarded_writes`).
"""

from ir_passes.contract.contract import BoundContract, Pool
from ir_passes.contract.declared import declaration_of
from ir_passes.contract.guarded_writes import guarded
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.bodies import map_equations


def flatten(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return a traced program with every call replaced by its body, but for the functions declared row-wise."""
    program = row_major(program)
    if any(ir.body_of(eqn) is not None and declaration_of(eqn) is None for eqn in program.jaxpr.eqns):
        program = ir.inline(program, keep=lambda eqn: declaration_of(eqn) is not None)
    return program


def step_form(program: ir.ClosedJaxpr, bound: BoundContract) -> ir.ClosedJaxpr:
    """Return the normal form of a step: without calls, and with guarded writes to its pools."""
    pools = {(one.shape, one.dtype) for one in bound.inputs if isinstance(one.entry, Pool)}
    return guarded(flatten(program), pools, keep=_not_looked_into)


def row_major(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return the same program, its bodies included, without reshapes that transpose.

    Functions that are declared row-wise and opaque calls stay as they are: nobody looks inside. A program that has no
    such reshape is returned itself.
    """
    return map_equations(program, _reshape_in_two, keep=_not_looked_into)


def _not_looked_into(eqn: ir.JaxprEqn) -> bool:
    return eqn.primitive.name in primitives.OPAQUE or declaration_of(eqn) is not None


def _reshape_in_two(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
    """A reshape, with a transpose before it where it has `dimensions`; another equation itself."""
    dimensions = eqn.params["dimensions"] if eqn.primitive.name == "reshape" else None
    if dimensions is None:
        return [eqn]
    params, (x,) = eqn.params | {"dimensions": None}, eqn.invars
    order = tuple(map(int, dimensions))
    if order == tuple(range(len(order))):
        return [eqn.replace(params=params)]
    turned, between = ir.transpose(x, order, eqn)
    return [turned, eqn.replace(invars=[between], params=params)]
