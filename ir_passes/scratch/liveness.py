"""Live ranges of temporaries, in equations of the inlined jaxpr.

Inputs, constants and outputs belong to the caller. Other values are live from their equation to the last reader, both
included: an equation reads operands while it writes results. Reshape, squeeze and bitcast are views: a read of a view
reads its base.

Bodies of scan, while, cond or shard_map use a block that is live at this equation only. A body reads inputs in place;
outer results hold a loop's carry. Body results stay in the block until they are copied to the outer results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import SCALAR_BODIES, VIEWS


@dataclass(frozen=True)
class Scratch:
    """A temporary value.

    Attributes:
        equation, result: number of the equation, and position among its results.
        start, end: first and last equation.
        offset: from the start of the arena or the body's part of a block; 0 without a plan.
    """

    equation: int
    result: int
    bytes: int
    start: int
    end: int
    eqn: ir.JaxprEqn = field(repr=False, compare=False)
    offset: int = 0

    @property
    def name(self) -> str:
        """Primitive and number of the equation, and position among several results."""
        return f"{self.eqn.primitive.name}.{self.equation}" + f".{self.result}" * (len(self.eqn.outvars) > 1)


@dataclass(frozen=True)
class Liveness:
    """Live ranges of an inlined jaxpr and its equations' bodies.

    Attributes:
        scratch: in the order of computation.
        bodies: equation -> live ranges of its bodies.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    scratch: tuple[Scratch, ...]
    bodies: dict[int, tuple["Liveness", ...]]

    @property
    def profile(self) -> tuple[int, ...]:
        """Live bytes at each equation, and after the last one."""
        changes = [0] * (len(self.jaxpr.jaxpr.eqns) + 2)
        for value in self.scratch:
            changes[value.start] += value.bytes
            changes[value.end + 1] -= value.bytes
        return tuple(live + self.block_bytes(i) for i, live in enumerate(accumulate(changes[:-1])))

    @property
    def lower_bound(self) -> int:
        """Peak of live bytes; no arena is smaller."""
        return max(self.profile)

    def block_bytes(self, equation: int) -> int:
        """Return the least scratch of an equation's bodies: sum, or largest branch of a cond."""
        sizes = [body.lower_bound for body in self.bodies.get(equation, ())]
        branches = bool(sizes) and self.jaxpr.jaxpr.eqns[equation].primitive.name == "cond"
        return max(sizes) if branches else sum(sizes)


def liveness(fn: Callable[..., Any], args: tuple[Any, ...]) -> Liveness:
    """Trace `fn(*args)`, and return the live ranges."""
    return liveness_of(ir.inline(ir.trace(fn, *args)))


def liveness_of(closed: ir.ClosedJaxpr) -> Liveness:
    """Return the live ranges of an inlined jaxpr; equal bodies share a `Liveness`."""
    liveness_by_body: dict[int, Liveness] = {}  # by id of the body's jaxpr, which the live ranges keep alive

    def of_body(body: ir.ClosedJaxpr) -> Liveness:
        if id(body.jaxpr) not in liveness_by_body:
            liveness_by_body[id(body.jaxpr)] = _liveness_of(body, True, of_body)
        return liveness_by_body[id(body.jaxpr)]

    return _liveness_of(closed, False, of_body)


def _liveness_of(closed: ir.ClosedJaxpr, is_body: bool, of_body: Callable[[ir.ClosedJaxpr], Liveness]) -> Liveness:
    eqns = closed.jaxpr.eqns
    base: dict[Any, tuple[int, int]] = {}  # variable -> (equation, result) with its bytes; the caller's are absent
    ends: dict[tuple[int, int], int] = {}
    for i, eqn in enumerate(eqns):
        ends |= {base[var]: i for var in ir.variables(eqn.invars) if var in base}
        if not is_view(eqn):
            base |= {var: (i, j) for j, var in enumerate(eqn.outvars)}
            ends |= {(i, j): i for j in range(len(eqn.outvars))}
        elif eqn.invars[0] in base:
            base[eqn.outvars[0]] = base[eqn.invars[0]]
    outputs = {base[var] for var in ir.variables(closed.jaxpr.outvars) if var in base}
    if is_body:
        ends |= dict.fromkeys(outputs, len(eqns))
    scratch = tuple(
        Scratch(i, j, bytes_of(eqns[i].outvars[j].aval), i, end, eqns[i])
        for (i, j), end in sorted(ends.items())
        if is_body or (i, j) not in outputs
    )
    bodies = {i: tuple(map(of_body, nested)) for i, eqn in enumerate(eqns) if (nested := bodies_of(eqn))}
    return Liveness(closed, scratch, bodies)


def is_view(eqn: ir.JaxprEqn) -> bool:
    """True if the result has the operand's bytes in order."""
    if len(eqn.outvars) != 1 or not eqn.invars or isinstance(eqn.invars[0], ir.Literal):
        return False
    operand, result = eqn.invars[0].aval, eqn.outvars[0].aval
    if eqn.primitive.name == "convert_element_type":
        return ir.dtype_of(eqn.invars[0]) == ir.dtype_of(eqn.outvars[0])
    same_order = eqn.params.get("dimensions") is None or eqn.primitive.name != "reshape"
    return eqn.primitive.name in VIEWS and same_order and bytes_of(operand) == bytes_of(result)


def bodies_of(eqn: ir.JaxprEqn) -> tuple[ir.ClosedJaxpr, ...]:
    if eqn.primitive.name == "while":
        return eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    body = ir.body_of(eqn)
    if body is not None:
        return (body,)
    return () if eqn.primitive.name in SCALAR_BODIES else tuple(map(ir.closed, ir.sub_jaxprs(eqn)))


def bytes_of(aval: Any) -> int:
    """Return a value's bytes; 0 for a token."""
    return math.prod(aval.shape) * aval.dtype.itemsize if hasattr(aval, "shape") and hasattr(aval, "dtype") else 0
