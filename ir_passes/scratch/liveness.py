"""Compute live ranges of temporaries, in equations of the inlined jaxpr.

Inputs, constants and outputs belong to the caller. Every other value is scratch. A scratch value is live from the
equation that computes it to the last equation that reads it, both included: an equation reads its operands while it
writes its results. A reinterpretation (reshape, squeeze, bitcast) is a view: a read of the view is a read of its base.

A scan, while, cond or shard_map runs its bodies in a block of bytes that is live only at this equation. A body reads
its inputs in place. The results of the outer equation hold the carry of a loop. The results of a body stay in the block
until the body ends and are then copied to the outer results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import SCALAR_BODIES, VIEWS

Key = tuple[int, int]
"""A value, as (number of the equation that computes it, position among the results)."""


@dataclass(frozen=True)
class Scratch:
    """One temporary value.

    Attributes:
        equation, result: the equation that computes it, and its position among the results.
        bytes: size of the temporary.
        start, end: first and last equation at which the temporary is live. A result of a body is live until the body
            ends.
        eqn: the equation that computes it.
    """

    equation: int
    result: int
    bytes: int
    start: int
    end: int
    eqn: ir.JaxprEqn = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """Primitive and number of the equation, and the position among several results."""
        return f"{self.eqn.primitive.name}.{self.equation}" + f".{self.result}" * (len(self.eqn.outvars) > 1)


@dataclass(frozen=True)
class Liveness:
    """Live ranges of one jaxpr and of the bodies that its equations run.

    Attributes:
        jaxpr: the inlined jaxpr.
        scratch: temporaries in the order of computation.
        views: values that are views of scratch or of the caller's arrays.
        bodies: equation -> live ranges of the bodies that the equation runs.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    scratch: tuple[Scratch, ...]
    views: frozenset[Key]
    bodies: dict[int, tuple["Liveness", ...]]

    @property
    def profile(self) -> tuple[int, ...]:
        """Live bytes at each equation, and after the last equation."""
        changes = [0] * (len(self.jaxpr.jaxpr.eqns) + 2)
        for value in self.scratch:
            changes[value.start] += value.bytes
            changes[value.end + 1] -= value.bytes
        live, profile = 0, list[int]()
        for equation, change in enumerate(changes[:-1]):
            live += change
            profile.append(live + self.block_bytes(equation))
        return tuple(profile)

    @property
    def lower_bound(self) -> int:
        """Largest number of bytes live at once; no arena is smaller."""
        return max(self.profile)

    def block_bytes(self, equation: int) -> int:
        """Smallest scratch of an equation's bodies.

        Bodies add up, except the branches of a cond: only one branch runs.
        """
        sizes = [body.lower_bound for body in self.bodies.get(equation, ())]
        branches = self.jaxpr.jaxpr.eqns[equation].primitive.name == "cond" if sizes else False
        return max(sizes) if branches else sum(sizes)


def liveness(fn: Callable[..., Any], args: tuple[Any, ...]) -> Liveness:
    """Trace `fn(*args)` without running it, and return the live ranges.

    Args:
        fn: any JAX function.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
    """
    return liveness_of(ir.inline(ir.trace(fn, *args)))


def liveness_of(closed: ir.ClosedJaxpr) -> Liveness:
    """Return the live ranges of an inlined jaxpr.

    Equations that run the same body share the body's `Liveness`.
    """
    body_liveness: dict[int, Liveness] = {}  # by id of the body's jaxpr; the live ranges keep the jaxpr alive

    def of_body(body: ir.ClosedJaxpr) -> Liveness:
        if id(body.jaxpr) not in body_liveness:
            body_liveness[id(body.jaxpr)] = _liveness_of(body, True, of_body)
        return body_liveness[id(body.jaxpr)]

    return _liveness_of(closed, False, of_body)


def _liveness_of(closed: ir.ClosedJaxpr, is_body: bool, of_body: Callable[[ir.ClosedJaxpr], Liveness]) -> Liveness:
    jaxpr = closed.jaxpr
    base: dict[Any, Key] = {}  # variable -> scratch or output with its bytes; arrays of the caller are absent
    ends: dict[Key, int] = {}
    views: set[Key] = set()
    bodies: dict[int, tuple[Liveness, ...]] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        ends |= {base[var]: i for var in ir.variables(eqn.invars) if var in base}
        view = is_view(eqn)
        for j, result in enumerate(eqn.outvars):
            if not view:
                base[result], ends[i, j] = (i, j), i
                continue
            views.add((i, j))
            if eqn.invars[0] in base:
                base[result] = base[eqn.invars[0]]
        if nested := bodies_of(eqn):
            bodies[i] = tuple(map(of_body, nested))
    outputs = {base[var] for var in ir.variables(jaxpr.outvars) if var in base}
    if is_body:
        ends |= dict.fromkeys(outputs, len(jaxpr.eqns))
    scratch = tuple(
        Scratch(i, j, bytes_of(jaxpr.eqns[i].outvars[j].aval), i, end, jaxpr.eqns[i])
        for (i, j), end in sorted(ends.items())
        if is_body or (i, j) not in outputs
    )
    return Liveness(closed, scratch, frozenset(views), bodies)


def is_view(eqn: ir.JaxprEqn) -> bool:
    """True if the result has the operand's bytes in the same order.

    The shape or dtype may differ.
    """
    if len(eqn.outvars) != 1 or not eqn.invars or isinstance(eqn.invars[0], ir.Literal):
        return False
    operand: Any = eqn.invars[0].aval
    result: Any = eqn.outvars[0].aval
    if eqn.primitive.name == "convert_element_type":
        return operand.dtype == result.dtype
    same_order = eqn.params.get("dimensions") is None or eqn.primitive.name != "reshape"
    return eqn.primitive.name in VIEWS and same_order and bytes_of(operand) == bytes_of(result)


def bodies_of(eqn: ir.JaxprEqn) -> tuple[ir.ClosedJaxpr, ...]:
    """Return the bodies that an equation runs: of a while the condition, then the body."""
    name = eqn.primitive.name
    if name == "while":
        return eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    called = ir.body_of(eqn)
    if called is not None:
        return (called,)
    return () if name in SCALAR_BODIES else tuple(ir.closed(body) for body in ir.sub_jaxprs(eqn))


def bytes_of(aval: Any) -> int:
    """Return the number of bytes of a value; 0 without a shape (for example tokens)."""
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        return 0
    return math.prod(aval.shape) * aval.dtype.itemsize
