"""Programs inside of equations: changes to all equations of a program, and parameters compared with their bodies."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ir_passes.jaxpr import ir, primitives


def map_equations(
    program: ir.ClosedJaxpr,
    change: Callable[[ir.JaxprEqn], Sequence[ir.JaxprEqn]],
    *,
    keep: Callable[[ir.JaxprEqn], bool],
) -> ir.ClosedJaxpr:
    """Return a program with other equations in the place of some; itself if none is another.

    Args:
        program: any.
        change: a function from an equation to those that take its place, itself where nothing does.
        keep: a predicate of the equations whose bodies stay as they are.
    """
    return _Mapped(change, keep).closed(program)


def without_layouts(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return a program that computes the same and leaves the order of every array's bytes to its compiler."""

    def change(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
        return [ir.copying(eqn) if eqn.primitive.name == "layout_constraint" else eqn]

    return map_equations(program, change, keep=lambda eqn: False)


_TRANSFORMED = ("custom_jvp_call", "custom_vjp_call", "custom_vmap_call")
"""Calls with rules for transformations of JAX."""
_UNUSED = frozenset({"ft_in", "ft_out", "policy"})
"""Parameters that compute nothing: trees of a scan's arguments, and the residuals that a derivative saves."""


def computing_params(eqn: ir.JaxprEqn) -> Mapping[str, Any]:
    """Return the parameters of an equation that change its results.

    Rules for derivatives and batches are left out: a traced program has no use for them. So are JAX's trees of
    arguments. The text of both may grow with each pass of JAX over a program (the trees of a scan in jax 0.11.2).
    """
    name, params = eqn.primitive.name, eqn.params
    if name in _TRANSFORMED:
        return {primitives.CALLS[name]: params[primitives.CALLS[name]]}
    if name not in primitives.WITH_BODIES or not _UNUSED & params.keys():
        return params
    counts = dict(zip(("num_consts", "num_carry"), ir.scan_counts(eqn), strict=True)) if name == "scan" else {}
    return {key: value for key, value in params.items() if key not in _UNUSED} | counts


def params_key(params: Mapping[str, Any]) -> Hashable:
    """Return what is equal for parameters that are equal; None for those that cannot be compared.

    Programs among them are equal where they have the same body, and hold the same constants. It has to be kept alive.
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


class _Mapped:
    """A program in which equations are replaced, those of nested bodies too; equal bodies are mapped once."""

    def __init__(self, change: Callable[[ir.JaxprEqn], Sequence[ir.JaxprEqn]], keep: Callable[[ir.JaxprEqn], bool]):
        self.change, self.keep = change, keep
        self.done: dict[int, tuple[ir.Jaxpr, ir.Jaxpr]] = {}
        """id of a body -> the body, which keeps its id its own, and what takes its place: many calls share one."""
        self.same: dict[int, Any] = {}
        """id of parameters in which nothing changes -> these: the equations of many layers share them."""

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

    def equation(self, eqn: ir.JaxprEqn) -> Sequence[ir.JaxprEqn]:
        made = self.change(eqn)
        if len(made) != 1 or made[0] is not eqn or self.keep(eqn):
            return made
        params = eqn.params
        if id(params) in self.same:
            return made
        new = {name: self.value(value) for name, value in params.items()}
        if any(new[name] is not value for name, value in params.items()):
            return [eqn.replace(params=new)]
        self.same[id(params)] = params
        return made

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
