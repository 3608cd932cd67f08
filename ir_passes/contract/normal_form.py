"""Normal form of a traced program: no calls, row-major reshapes.

`lax.reshape(x, sizes, dimensions)`, from `order="F"` and batched convolutions, becomes a transpose and a reshape.
"""

from functools import partial

from ir_passes.contract.declared import declaration_of
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.bodies import map_equations


def flatten(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Inline all calls except row-wise functions."""
    program = row_major(program)
    if any(ir.body_of(eqn) is not None and declaration_of(eqn) is None for eqn in program.jaxpr.eqns):
        program = ir.inline(program, keep=lambda eqn: declaration_of(eqn) is not None)
    return program


def row_major(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Split reshapes that transpose, call compound operations; opaque and row-wise calls stay."""
    return map_equations(program, _in_parts, keep=is_opaque)


def is_opaque(eqn: ir.JaxprEqn) -> bool:
    return eqn.primitive.name in primitives.OPAQUE or declaration_of(eqn) is not None


def _in_parts(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
    if eqn.primitive.name == "call_hi_primitive":  # `jnp.searchsorted` since jax 0.12
        return [ir.call_instead(eqn, partial(eqn.primitive.to_lojax, **eqn.params))]
    dimensions = eqn.params["dimensions"] if eqn.primitive.name == "reshape" else None
    if dimensions is None:
        return [eqn]
    params, (x,) = eqn.params | {"dimensions": None}, eqn.invars
    order = tuple(map(int, dimensions))
    if order == tuple(range(len(order))):
        return [eqn.replace(params=params)]
    transpose, transposed = ir.transpose(x, order, eqn)
    return [transpose, eqn.replace(invars=[transposed], params=params)]
