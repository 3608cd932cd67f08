"""Form of a step that is proved and compiled: flat, with guarded writes.

Conditional writes become guarded writes: `where(p, pool.at[i].set(x), pool)` -> `pool.at[where(p, i, size)].set(x)`.
XLA copies an array that a select reads after its write; a guarded write is in place. Elements are equal: a scatter
drops indices out of bounds, and a slice is written with its old elements.
"""

from collections import Counter
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir_passes.contract.contract import BoundContract, Shared
from ir_passes.contract.normal_form import flatten, is_opaque
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.bodies import map_equations
from ir_passes.jaxpr.dtypes import limits
from ir_passes.jaxpr.rewriting import emit, renamed


def step_form(program: ir.ClosedJaxpr, bound: BoundContract) -> ir.ClosedJaxpr:
    """Flatten a step; replace conditional writes, also in bodies."""
    program = flatten(program)
    arrays = {(array.shape, array.dtype) for array in bound.inputs if not isinstance(array.entry, Shared)}
    if not any(_condition(eqn) for eqn in ir.all_eqns(program.jaxpr)):
        return program
    uses = Counter[Any]()
    bodies = {id(body): body for eqn in ir.all_eqns(program.jaxpr) for body in ir.sub_jaxprs(eqn)}
    for jaxpr in (program.jaxpr, *bodies.values()):
        uses.update(ir.variables([*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars)]))
    writes: dict[Any, ir.JaxprEqn] = {}
    moved: set[int] = set()

    def guard(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
        if _guardable(eqn) and (ir.shape_of(eqn.outvars[0]), ir.dtype_of(eqn.outvars[0])) in arrays:
            writes[eqn.outvars[0]] = eqn
        operands = _condition(eqn)
        for when in (True, False) if operands else ():
            flag, old, new = operands[0], operands[2 - when], operands[1 + when]
            write = None if isinstance(new, ir.Literal) else writes.get(new)
            if write is not None and write.invars[0] is old and uses[new] == 1:
                moved.add(id(write))
                return _instead(eqn, write, flag, when)
        return [eqn]

    changed = map_equations(program, guard, keep=is_opaque)
    return map_equations(changed, lambda eqn: [] if id(eqn) in moved else [eqn], keep=is_opaque)


def _condition(eqn: ir.JaxprEqn) -> list[Any]:
    """Return the operands of a select by a scalar, perhaps inside a call, or []."""
    body = ir.body_of(eqn)
    if body is not None and len(body.jaxpr.eqns) == 1 and body.jaxpr.outvars == body.jaxpr.eqns[0].outvars:
        (select,) = body.jaxpr.eqns
        outer = dict(zip(body.jaxpr.invars, eqn.invars, strict=True))
        named = not body.consts and all(var in outer for var in ir.variables(select.invars))
        eqn = renamed(select, outer) if named else eqn
    is_select = eqn.primitive.name == "select_n" and len(eqn.invars) == 3 and ir.shape_of(eqn.invars[0]) == ()
    return list(eqn.invars) if is_select else []


def _guardable(eqn: ir.JaxprEqn) -> bool:
    """True for a slice write, or a scatter that drops indices out of bounds."""
    if eqn.primitive.name == "dynamic_update_slice":
        return True
    if eqn.primitive.name not in primitives.SCATTERS:
        return False
    drops = eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    return drops and max(_outside(eqn), default=0) <= limits(ir.dtype_of(eqn.invars[1]))[1]


def _outside(scatter: ir.JaxprEqn) -> list[int]:
    """Return an index out of bounds for each column of a scatter's indices."""
    shape = ir.shape_of(scatter.invars[0])
    return [shape[dim] for dim in scatter.params["dimension_numbers"].scatter_dims_to_operand_dims]


def _instead(select: ir.JaxprEqn, write: ir.JaxprEqn, flag: Any, when: bool) -> list[ir.JaxprEqn]:
    def chosen(p: Any, new: Any, old: Any) -> Any:
        p = jnp.broadcast_to(p, new.shape)
        return lax.select(p if when else ~p, new, jnp.broadcast_to(old, new.shape).astype(new.dtype))

    if write.primitive.name == "dynamic_update_slice":

        def values(p: Any, array: Any, updates: Any, *starts: Any) -> Any:
            return chosen(p, updates, lax.dynamic_slice(array, starts, updates.shape, allow_negative_indices=False))

        array, updates, *starts = write.invars
        eqns, (updates,), _ = emit(values, [flag, array, updates, *starts], write)
        return [*eqns, write.replace(invars=[array, updates, *starts], outvars=select.outvars)]
    dropped = _outside(write)

    def places(p: Any, indices: Any) -> Any:
        columns = (chosen(p, indices[..., k : k + 1], limit) for k, limit in enumerate(dropped))
        return jnp.concatenate([*columns], axis=-1)

    array, indices, updates = write.invars
    eqns, (indices,), _ = emit(places, [flag, indices], write)
    params = write.params | {"unique_indices": False}
    return [*eqns, write.replace(invars=[array, indices, updates], outvars=select.outvars, params=params)]
