"""Live ranges of temporaries, in equations of the inlined jaxpr.

Inputs, constants and outputs belong to the caller. Other values are live from their equation to the last reader, both
included: an equation reads operands while it writes results. Reshape, squeeze and bitcast are views: a read of a view
reads its base.

Bodies of scan, while, cond or shard_map use a block that is live at this equation only. A body reads inputs in place;
outer results hold a loop's carry. Body results stay in the block until they are copied to the outer results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import SCALAR_BODIES
from ir_passes.jaxpr.rewriting import bytes_of, is_view


@dataclass(frozen=True)
class Scratch:
    """A temporary value.

    Attributes:
        equation, result: number of the equation, and position among its results; -1 for the block of its bodies.
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
        name = f"{self.eqn.primitive.name}.{self.equation}"
        return f"bodies of {name}" if self.result < 0 else name + f".{self.result}" * (len(self.eqn.outvars) > 1)

    def __str__(self) -> str:
        place = f"in bytes [{self.offset}, {self.offset + self.bytes}) live at equations [{self.start}, {self.end}]"
        return f"{self.name} {place}"


@dataclass(frozen=True, eq=False)
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
        is_cond = equation in self.bodies and self.jaxpr.jaxpr.eqns[equation].primitive.name == "cond"
        return (max if is_cond else sum)(body.lower_bound for body in self.bodies.get(equation, ()))


def liveness(fn: Callable[..., Any], args: tuple[Any, ...]) -> Liveness:
    """Trace `fn(*args)`, and return the live ranges."""
    return liveness_of(ir.inline(ir.trace(fn, *args)))


def liveness_of(closed: ir.ClosedJaxpr) -> Liveness:
    """Return the live ranges of an inlined jaxpr; equal bodies share a `Liveness`."""

    @cache
    def live(jaxpr: ir.Jaxpr, is_body: bool = True) -> Liveness:
        eqns = jaxpr.eqns
        base: dict[Any, tuple[int, int]] = {}  # variable -> (equation, result) with its bytes; the caller's are absent
        ends: dict[tuple[int, int], int] = {}
        for i, eqn in enumerate(eqns):
            ends |= {base[var]: i for var in ir.variables(eqn.invars) if var in base}
            if not is_view(eqn):
                base |= {var: (i, j) for j, var in enumerate(eqn.outvars)}
                ends |= {(i, j): i for j in range(len(eqn.outvars))}
            elif eqn.invars[0] in base:
                base[eqn.outvars[0]] = base[eqn.invars[0]]
        for place in {base[var] for var in ir.variables(jaxpr.outvars) if var in base}:
            ends[place] = len(eqns)
            if not is_body:
                del ends[place]
        places = ((*place, end, eqns[place[0]]) for place, end in sorted(ends.items()))
        scratch = tuple(Scratch(i, j, bytes_of(eqn.outvars[j].aval), i, end, eqn) for i, j, end, eqn in places)
        bodies = {i: tuple(map(live, nested)) for i, eqn in enumerate(eqns) if (nested := bodies_of(eqn))}
        return Liveness(ir.closed(jaxpr) if is_body else closed, scratch, bodies)

    return live(closed.jaxpr, False)


def bodies_of(eqn: ir.JaxprEqn) -> Sequence[ir.Jaxpr]:
    """Return the bodies with scratch, of a while its condition first."""
    if eqn.primitive.name == "while":
        return eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    return () if eqn.primitive.name in SCALAR_BODIES else tuple(ir.sub_jaxprs(eqn))
