"""Programs and types for rewrites, plans and the sanitizer; no proof depends on them."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import VIEWS


def array_type(shape: tuple[int, ...], dtype: str, weak: bool, place: jax.sharding.NamedSharding | None) -> Any:
    """Return an array type, on the mesh of `place` if there is one."""
    aval = ir.ShapedArray(shape, jnp.dtype(dtype), weak_type=weak)
    if place is None:
        return aval
    spec = (*place.spec, *[None] * (len(shape) - len(place.spec)))
    return aval.update(sharding=jax.sharding.NamedSharding(place.mesh.abstract_mesh, jax.sharding.PartitionSpec(*spec)))


def maker_of(jaxpr: ir.Jaxpr, atom: ir.Atom) -> int:
    """Return the index of the equation that defines a value, or the number of equations."""
    return next((k for k, eqn in enumerate(jaxpr.eqns) if atom in eqn.outvars), len(jaxpr.eqns))


def eval_eqn(eqn: ir.JaxprEqn, *values: Any) -> list[Any]:
    """Return all results of an equation, under its source line when traced."""
    operands: dict[ir.Var, Any] = {
        atom: value for atom, value in zip(eqn.invars, values, strict=True) if not isinstance(atom, ir.Literal)
    }
    outvars = ir.of_types([var.aval for var in eqn.outvars])
    jaxpr = ir.replace(_EMPTY.jaxpr, list(operands), [eqn.replace(outvars=outvars)], outvars)
    program = ir.ClosedJaxpr(jaxpr.replace(effects=eqn.effects), ())
    return ir.core.jaxpr_as_fun(program)(*operands.values())


_EMPTY = jax.make_jaxpr(lambda: ())()


def with_eqns(
    program: ir.ClosedJaxpr, eqns: Sequence[ir.JaxprEqn], outvars: Sequence[ir.Atom], consts: Mapping[ir.Var, Any]
) -> ir.ClosedJaxpr:
    """Return a program with the same inputs, other equations and results, and more constants."""
    constvars = [*program.jaxpr.constvars, *consts]
    flat = program.jaxpr.replace(
        constvars=constvars, eqns=list(eqns), outvars=list(outvars), debug_info=program.jaxpr.debug_info
    )
    return ir.ClosedJaxpr(flat, [*program.consts, *consts.values()])


def emit(
    fn: Callable[..., Any], operands: Sequence[ir.Atom], source: ir.JaxprEqn | None = None
) -> tuple[list[ir.JaxprEqn], list[ir.Atom], dict[ir.Var, Any]]:
    """Return the equations of `fn(*operands)`, the flattened results, and constants by variable.

    Literals are passed as arrays; `source` has the source line.
    """
    with ir.sourced(source) if source is not None else nullcontext():
        traced = ir.inline(jax.make_jaxpr(fn)(*(atom.aval for atom in operands)))
    names = dict(zip(traced.jaxpr.invars, operands, strict=True))
    eqns = [renamed(eqn, names) for eqn in traced.jaxpr.eqns]
    results = [rename(atom, names) for atom in traced.jaxpr.outvars]
    return eqns, results, dict(zip(traced.jaxpr.constvars, traced.consts, strict=True))


def rename(atom: ir.Atom, names: Mapping[ir.Var, ir.Atom]) -> ir.Atom:
    return atom if isinstance(atom, ir.Literal) else names.get(atom, atom)


def renamed(eqn: ir.JaxprEqn, names: Mapping[ir.Var, ir.Atom]) -> ir.JaxprEqn:
    if not any(atom in names for atom in ir.variables(eqn.invars)):
        return eqn
    return eqn.replace(invars=[rename(atom, names) for atom in eqn.invars])


def is_view(eqn: ir.JaxprEqn) -> bool:
    """True if the result has the operand's bytes in order."""
    if len(eqn.outvars) != 1 or not eqn.invars or isinstance(eqn.invars[0], ir.Literal):
        return False
    (operand, *_), (result,) = eqn.invars, eqn.outvars
    if eqn.primitive.name == "convert_element_type":
        return ir.dtype_of(operand) == ir.dtype_of(result)
    permutes = eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None
    return eqn.primitive.name in VIEWS and not permutes and bytes_of(operand.aval) == bytes_of(result.aval)


def bytes_of(aval: Any) -> int:
    """Return a value's bytes; 0 for a token."""
    return math.prod(aval.shape) * aval.dtype.itemsize if hasattr(aval, "shape") and hasattr(aval, "dtype") else 0
