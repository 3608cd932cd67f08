"""Compute live ranges of temporaries, in equations of the inlined jaxpr.

Inputs, constants and outputs belong to the caller. Every other value is scratch, live from the equation that computes
it to the last equation that reads it, both included: an equation reads its operands while it writes its results. A
reinterpretation (reshape, squeeze, bitcast) is a view: a read of the view is a read of its base.

The bodies of a scan, while, cond or shard_map use a block of bytes that is live only at this equation. A body reads its
inputs in place. The results of the outer equation hold the carry of a loop. Results of a body stay in the block until
the body ends and are then copied to the outer results.
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
    """One temporary value.

    Attributes:
        equation, result: the equation that computes it, and its position among the results.
        start, end: first and last equation at which it is live.
        eqn: the equation that computes it.
        offset: of its bytes, from the start of the arena or of the body's part of a block; 0 without a plan.
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
        """Primitive and number of the equation, and the position among several results."""
        return f"{self.eqn.primitive.name}.{self.equation}" + f".{self.result}" * (len(self.eqn.outvars) > 1)


@dataclass(frozen=True)
class Liveness:
    """Live ranges of one jaxpr and of the bodies that its equations run.

    Attributes:
        jaxpr: the inlined jaxpr.
        scratch: temporaries in the order of computation.
        bodies: equation -> live ranges of the bodies that the equation runs.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    scratch: tuple[Scratch, ...]
    bodies: dict[int, tuple["Liveness", ...]]

    @property
    def profile(self) -> tuple[int, ...]:
        """Live bytes at each equation, and after the last equation."""
        changes = [0] * (len(self.jaxpr.jaxpr.eqns) + 2)
        for value in self.scratch:
            changes[value.start] += value.bytes
            changes[value.end + 1] -= value.bytes
        return tuple(live + self.block_bytes(i) for i, live in enumerate(accumulate(changes[:-1])))

    @property
    def lower_bound(self) -> int:
        """Largest number of bytes live at once; no arena is smaller."""
        return max(self.profile)

    def block_bytes(self, equation: int) -> int:
        """Smallest scratch of an equation's bodies: the sum, or the largest branch of a cond."""
        sizes = [body.lower_bound for body in self.bodies.get(equation, ())]
        branches = bool(sizes) and self.jaxpr.jaxpr.eqns[equation].primitive.name == "cond"
        return max(sizes) if branches else sum(sizes)


def liveness(fn: Callable[..., Any], args: tuple[Any, ...]) -> Liveness:
    """Trace `fn(*args)` without running it, and return the live ranges.

    Args:
        fn: any JAX function.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
    """
    return liveness_of(ir.inline(ir.trace(fn, *args)))


def liveness_of(closed: ir.ClosedJaxpr) -> Liveness:
    """Return the live ranges of an inlined jaxpr; equal bodies share a `Liveness`."""
    liveness_by_body: dict[int, Liveness] = {}  # by id of the body's jaxpr; the live ranges keep the jaxpr alive

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
    """True if the result has the operand's bytes in the same order."""
    if len(eqn.outvars) != 1 or not eqn.invars or isinstance(eqn.invars[0], ir.Literal):
        return False
    operand, result = eqn.invars[0].aval, eqn.outvars[0].aval
    if eqn.primitive.name == "convert_element_type":
        return ir.dtype_of(eqn.invars[0]) == ir.dtype_of(eqn.outvars[0])
    same_order = eqn.params.get("dimensions") is None or eqn.primitive.name != "reshape"
    return eqn.primitive.name in VIEWS and same_order and bytes_of(operand) == bytes_of(result)


def bodies_of(eqn: ir.JaxprEqn) -> tuple[ir.ClosedJaxpr, ...]:
    """Return the bodies that an equation runs: of a while the condition, then the body."""
    if eqn.primitive.name == "while":
        return eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    body = ir.body_of(eqn)
    if body is not None:
        return (body,)
    return () if eqn.primitive.name in SCALAR_BODIES else tuple(map(ir.closed, ir.sub_jaxprs(eqn)))


def bytes_of(aval: Any) -> int:
    """Return the number of bytes of a value; 0 without a shape (for example tokens)."""
    return math.prod(aval.shape) * aval.dtype.itemsize if hasattr(aval, "shape") and hasattr(aval, "dtype") else 0
