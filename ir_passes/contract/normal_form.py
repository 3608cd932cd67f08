"""The normal form of a traced program for proof, rewrites and compilation.

The normal form has no calls, and only row-major reshapes.

`lax.reshape(x, sizes, dimensions)` transposes `x` by `dimensions` first. `order="F"` of numpy's functions and the
batching rule of convolutions make such reshapes; each becomes a transpose and a reshape. A select between a pool and
its successor becomes a guarded write (`ir_passes.contract.guarded_writes`).
"""

from ir_passes.contract.contract import BoundContract, Pool
from ir_passes.contract.declared import declaration_of
from ir_passes.contract.guarded_writes import guarded
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.bodies import map_equations


def flatten(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return a traced program with calls replaced by bodies, except row-wise functions."""
    program = row_major(program)
    if any(ir.body_of(eqn) is not None and declaration_of(eqn) is None for eqn in program.jaxpr.eqns):
        program = ir.inline(program, keep=lambda eqn: declaration_of(eqn) is not None)
    return program


def step_form(program: ir.ClosedJaxpr, bound: BoundContract) -> ir.ClosedJaxpr:
    """Return the normal form of a step, with guarded writes to its pools."""
    pools = {(array.shape, array.dtype) for array in bound.inputs if isinstance(array.entry, Pool)}
    return guarded(flatten(program), pools, keep=_is_opaque)


def row_major(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return a program, with its bodies, without reshapes that transpose.

    Opaque calls and functions declared row-wise are unchanged; so is a program without such a reshape.
    """
    return map_equations(program, _reshape_in_two, keep=_is_opaque)


def _is_opaque(eqn: ir.JaxprEqn) -> bool:
    return eqn.primitive.name in primitives.OPAQUE or declaration_of(eqn) is not None


def _reshape_in_two(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
    """Return a reshape with `dimensions` as transpose and reshape; else the equation."""
    dimensions = eqn.params["dimensions"] if eqn.primitive.name == "reshape" else None
    if dimensions is None:
        return [eqn]
    params, (x,) = eqn.params | {"dimensions": None}, eqn.invars
    order = tuple(map(int, dimensions))
    if order == tuple(range(len(order))):
        return [eqn.replace(params=params)]
    transpose, transposed = ir.transpose(x, order, eqn)
    return [transpose, eqn.replace(invars=[transposed], params=params)]
