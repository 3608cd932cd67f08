"""Adapter to JAX's intermediate representation, for JAX 0.10 (Python 3.11) and later."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray as ShapedArray
from jax.core import Tracer as Tracer
from jax.extend import core
from jax.extend import source_info_util as _source_info
from jax.extend.core import primitives
from jax.interpreters import mlir as _mlir
from jax.interpreters import partial_eval as _partial_eval

from ir_passes.jaxpr.jax_private_refs import without_refs
from ir_passes.jaxpr.primitives import CALLS, OPAQUE
from ir_passes.jaxpr.sources import frames_of as frames_of
from ir_passes.jaxpr.sources import source_in_call
from ir_passes.jaxpr.sources import source_of as source_of

Var = core.Var
Literal = core.Literal
Jaxpr = core.Jaxpr
ClosedJaxpr = core.ClosedJaxpr
JaxprEqn = core.JaxprEqn
as_function = core.jaxpr_as_fun
DropVar = getattr(core, "DropVar", None) or type("DropVar", (), {})
Atom = Any


def trace(fn: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    """Return the jaxpr of `fn(*args)` over flattened arguments and results."""
    return without_refs(jax.make_jaxpr(fn)(*args))


def new_primitive(name: str, types: Callable[..., Any], run: Callable[..., Any]) -> Any:
    new = core.Primitive(name)
    new.def_abstract_eval(types)
    new.def_impl(run)
    _mlir.register_lowering(new, _mlir.lower_fun(run, multiple_results=False))
    return new


def sourced(eqn: JaxprEqn) -> Any:
    """Return a context that gives traced equations the source of `eqn`."""
    return _source_info.user_context(eqn.source_info.traceback)


def evaluated(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Return the results for known operands, also inside a trace."""
    with jax.ensure_compile_time_eval():
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        return list(map(np.asarray, results if eqn.primitive.multiple_results else [results]))


def body_of(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the body of a call that only names a computation, or None."""
    name = CALLS.get(eqn.primitive.name)
    if name is None or name not in eqn.params:
        return None
    return closed(eqn.params[name])


def closed(jaxpr: Any) -> ClosedJaxpr:
    """Return a jaxpr with constants; missing constants become inputs."""
    if isinstance(jaxpr, ClosedJaxpr):
        return jaxpr
    if jaxpr.constvars:
        jaxpr = replace(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.eqns, jaxpr.outvars)
    return ClosedJaxpr(jaxpr, ())


_LISTS, _JAXPRS = (tuple, list), (Jaxpr, ClosedJaxpr)


def sub_jaxprs(eqn: JaxprEqn, opaque: bool = False) -> Iterator[Jaxpr]:
    """Yield the jaxprs among an equation's parameters; `opaque` includes kernels."""
    if eqn.primitive.name in OPAQUE and not opaque:
        return
    for value in eqn.params.values():
        for item in value if isinstance(value, _LISTS) else (value,):
            if isinstance(item, _JAXPRS):
                yield item.jaxpr if isinstance(item, ClosedJaxpr) else item


def all_eqns(jaxpr: Jaxpr, opaque: bool = False) -> Iterator[JaxprEqn]:
    """Yield every equation of a program and its bodies; `opaque` as for `sub_jaxprs`."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn, opaque):
            yield from all_eqns(inner, opaque)


def definition_of(jitted: Any) -> str:
    """Return "name at file:line" of a jitted function, as its callers' programs record it."""
    function = inspect.unwrap(jitted)
    code = function.__code__
    return f"{function.__name__} at {code.co_filename}:{code.co_firstlineno}"


def called_definition(eqn: JaxprEqn) -> str:
    """Return "name at file:line" of a called function, or ""."""
    body = body_of(eqn)
    return "" if body is None else str(body.jaxpr.debug_info.func_src_info)


def aliases_of(eqn: JaxprEqn) -> dict[int, int]:
    """Return operand -> result in its memory, of a custom call or kernel."""
    return dict(eqn.params.get("input_output_aliases") or ())


def replace(jaxpr: Jaxpr, invars: Sequence[Var], eqns: Sequence[JaxprEqn], outvars: Sequence[Atom]) -> Jaxpr:
    names = jaxpr.debug_info.with_unknown_names()
    return jaxpr.replace(constvars=[], invars=list(invars), eqns=list(eqns), outvars=list(outvars), debug_info=names)


def run(
    jaxpr: Jaxpr,
    consts: Iterable[Any],
    args: Iterable[Any],
    equation: Callable[[JaxprEqn, list[Any]], Iterable[Any]],
    literal: Callable[[Any], Any] = lambda value: value,
) -> list[Any]:
    """Run a program; `equation` returns the results of an equation for its operands."""
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Atom) -> Any:
        return literal(atom.val) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, equation(eqn, list(map(read, eqn.invars))), strict=True))
    return list(map(read, jaxpr.outvars))


def inline(program: ClosedJaxpr, keep: Callable[[JaxprEqn], bool] = lambda eqn: False) -> ClosedJaxpr:
    """Replace calls that only name a computation by their bodies.

    Equations keep their source, with the call's source as its caller; an equation without a source gets the call's.
    """
    new_var = core.gensym()
    eqns: list[JaxprEqn] = []
    constvars, consts = list(program.jaxpr.constvars), list(program.consts)

    def run(jaxpr: Jaxpr, names: dict[Var, Atom], caller: Any) -> None:
        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else names[atom]

        for eqn in jaxpr.eqns:
            invars = [read(atom) for atom in eqn.invars]
            source = source_in_call(eqn, caller)
            body = body_of(eqn)
            if body is None or keep(eqn):
                outvars = [var if isinstance(var, DropVar) else new_var(var.aval) for var in eqn.outvars]
                eqns.append(eqn.replace(invars=invars, outvars=outvars, source_info=source))
                results: list[Atom] = outvars
            else:
                inner: dict[Var, Atom] = dict(zip(body.jaxpr.invars, invars, strict=True))
                for var, const in zip(body.jaxpr.constvars, body.consts, strict=True):
                    inner[var] = new_var(var.aval)
                    constvars.append(inner[var])
                    consts.append(const)
                run(body.jaxpr, inner, source)
                results = [atom if isinstance(atom, Literal) else inner[atom] for atom in body.jaxpr.outvars]
            names.update(zip(eqn.outvars, results, strict=True))

    names: dict[Var, Atom] = {var: var for var in (*program.jaxpr.constvars, *program.jaxpr.invars)}
    run(program.jaxpr, names, None)
    outvars = [atom if isinstance(atom, Literal) else names[atom] for atom in program.jaxpr.outvars]
    flat = replace(program.jaxpr, program.jaxpr.invars, eqns, outvars).replace(constvars=constvars)
    return ClosedJaxpr(flat, consts)


def scan_counts(eqn: JaxprEqn) -> tuple[int, int]:
    """Return the numbers of constants and carries among a scan's operands; `xs` follow."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].update(eqn.invars).unpack()
    return len(list(consts)), len(list(carry))


def check(program: ClosedJaxpr) -> None:
    core.check_jaxpr(program.jaxpr)


def types(atoms: Sequence[Atom]) -> list[str]:
    return [atom.aval.str_short() for atom in atoms]


def without_dead(program: ClosedJaxpr) -> ClosedJaxpr:
    used = [True] * len(program.jaxpr.outvars)
    live, _ = _partial_eval.dce_jaxpr(program.jaxpr, used, instantiate=True)
    return ClosedJaxpr(live, program.consts)


def call_instead(eqn: JaxprEqn, fn: Callable[..., Any]) -> JaxprEqn:
    """Replace an equation by a call of `fn` on its operands.

    Unused equations stay: the index of an overwritten store may be out of bounds. A captured array is a ValueError.
    """
    with sourced(eqn):
        traced = jax.make_jaxpr(fn)(*(atom.aval for atom in eqn.invars))
    if traced.consts:
        raise ValueError(f"expected a function without captured arrays, got {traced.jaxpr.constvars}")
    (call,) = jax.make_jaxpr(jax.jit(core.jaxpr_as_fun(traced)))(*(atom.aval for atom in eqn.invars)).eqns
    return call.replace(invars=list(eqn.invars), outvars=list(eqn.outvars), source_info=eqn.source_info)


def transpose(x: Atom, order: Sequence[int], source: JaxprEqn) -> tuple[JaxprEqn, Var]:
    with jax.sharding.use_abstract_mesh(x.aval.sharding.mesh):  # type: ignore[attr-defined]  # an array's
        aval, _ = primitives.transpose_p.abstract_eval(x.aval, permutation=tuple(order))
    (result,) = of_types([aval])
    params = {"permutation": tuple(order)}
    return source.replace(primitive=primitives.transpose_p, params=params, invars=[x], outvars=[result]), result


def of_types(avals: Sequence[Any]) -> list[Var]:
    new_var = core.gensym()
    return [new_var(aval) for aval in avals]


def variables(atoms: Sequence[Atom]) -> list[Var]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def shape_of(atom: Atom) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def shapes(atoms: Sequence[Atom]) -> list[tuple[int, ...]]:
    return [shape_of(atom) for atom in atoms]


def dtype_of(atom: Atom) -> Any:
    """Return an array's dtype; None for a token."""
    return getattr(atom.aval, "dtype", None)
