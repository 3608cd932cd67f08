"""Programs inside equations: maps over equations, and keys of parameters."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.dtypes import is_integer


def map_equations(
    program: ir.ClosedJaxpr,
    change: Callable[[ir.JaxprEqn], Sequence[ir.JaxprEqn]],
    *,
    keep: Callable[[ir.JaxprEqn], bool],
) -> ir.ClosedJaxpr:
    """Replace equations, also in bodies, except of equations to `keep`.

    An unchanged program stays the same object.
    """
    bodies: dict[int, tuple[ir.Jaxpr, ir.Jaxpr]] = {}  # id of a body -> the body, kept alive, and the new body
    same: dict[int, Any] = {}  # id of unchanged parameters -> parameters, shared by many layers

    def body(jaxpr: ir.Jaxpr) -> ir.Jaxpr:
        if id(jaxpr) not in bodies:
            eqns = [new for eqn in jaxpr.eqns for new in equation(eqn)]
            unchanged = len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
            bodies[id(jaxpr)] = jaxpr, jaxpr if unchanged else jaxpr.replace(eqns=eqns, debug_info=jaxpr.debug_info)
        return bodies[id(jaxpr)][1]

    def equation(eqn: ir.JaxprEqn) -> Sequence[ir.JaxprEqn]:
        replacements = change(eqn)
        if len(replacements) != 1 or replacements[0] is not eqn or keep(eqn) or id(eqn.params) in same:
            return replacements
        new = {name: parameter(value) for name, value in eqn.params.items()}
        if any(new[name] is not value for name, value in eqn.params.items()):
            return [eqn.replace(params=new)]
        same[id(eqn.params)] = eqn.params
        return replacements

    def parameter(value: Any) -> Any:
        if isinstance(value, ir.ClosedJaxpr):
            jaxpr = body(value.jaxpr)
            return value if jaxpr is value.jaxpr else ir.ClosedJaxpr(jaxpr, value.consts)
        if isinstance(value, ir.Jaxpr):
            return body(value)
        if type(value) not in (tuple, list):
            return value
        new = [parameter(item) for item in value]
        return value if all(a is b for a, b in zip(new, value, strict=True)) else type(value)(new)

    return parameter(program)


def counting_loop(eqn: ir.JaxprEqn) -> tuple[int, ir.Atom] | None:
    """Return carry index and end of a counting `while`, or None.

    Every iteration has first counter <= counter < end. The end is a literal, a constant, or an unchanged carry.
    """
    condition, body = (ir.closed(eqn.params[name]).jaxpr for name in ("cond_jaxpr", "body_jaxpr"))
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
        return None
    (comparison,) = condition.eqns
    counter, end = comparison.invars
    carries, inputs = condition.invars[eqn.params["cond_nconsts"] :], body.invars[eqn.params["body_nconsts"] :]
    if condition.outvars != comparison.outvars or counter not in carries:
        return None
    number = carries.index(counter)
    is_fixed = end not in carries or body.outvars[carries.index(end)] is inputs[carries.index(end)]
    return (number, end) if is_fixed and counts_up(body, number, eqn.params["body_nconsts"]) else None


def maker(jaxpr: ir.Jaxpr, atom: ir.Atom) -> Any:
    return next((eqn for eqn in jaxpr.eqns if any(var is atom for var in eqn.outvars)), None)


def counts_up(body: ir.Jaxpr, carry: int, constants: int) -> bool:
    """True if each iteration adds 1 to an integer carry; carries follow `constants` inputs."""
    eqn = maker(body, body.outvars[carry])
    if eqn is None or eqn.primitive.name != "add" or eqn.invars[0] is not body.invars[constants + carry]:
        return False
    by = eqn.invars[1]
    return isinstance(by, ir.Literal) and is_integer(ir.dtype_of(by)) and int(by.val) == 1


_TRANSFORMED = ("custom_jvp_call", "custom_vjp_call", "custom_vmap_call")
"""Calls with rules for JAX's transformations."""
_UNUSED = frozenset({"ft_in", "ft_out", "policy"})
"""Parameters without computation: argument trees of a scan, and saved residuals."""


def computing_params(eqn: ir.JaxprEqn) -> Mapping[str, Any]:
    """Return the parameters that change an equation's results.

    Rules for derivatives and batches, and argument trees, are left out: their text may grow with each pass of JAX (a
    scan's trees in jax 0.11.2).
    """
    name, params = eqn.primitive.name, eqn.params
    if name in _TRANSFORMED:
        return {primitives.CALLS[name]: params[primitives.CALLS[name]]}
    if name not in primitives.WITH_BODIES or not _UNUSED & params.keys():
        return params
    counts = dict(zip(("num_consts", "num_carry"), ir.scan_counts(eqn), strict=True)) if name == "scan" else {}
    return {key: value for key, value in params.items() if key not in _UNUSED} | counts


def params_key(params: Mapping[str, Any]) -> Hashable:
    """Return a key that is equal for equal parameters, or None if they are unhashable.

    Programs are equal if they have the same body and constants. Keep the parameters alive: the key contains ids.
    """
    key = tuple((name, _key(value)) for name, value in params.items())
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _key(value: Any) -> Hashable:
    if isinstance(value, ir.ClosedJaxpr):
        return "program", value.jaxpr, tuple(map(id, value.consts))
    if type(value) in (tuple, list):
        return type(value), tuple(map(_key, value))
    return type(value), value
