"""Live ranges of the scratch of a function: the first and the last equation at which each value needs its bytes.

The arena planner and its verifier share this storage model. Time is counted in equations of the inlined jaxpr. Inputs,
constants and outputs are held: their bytes belong to the caller. Every other value is scratch and is live from the
equation that computes it to the last one that reads it, both included: an operand that is read for the last time and
the result of that equation are live together. A reinterpretation of bytes (reshape, squeeze, bitcast) has no bytes of
its own: reading it is reading its base.

A scan, while, cond or shard_map runs a body with scratch of its own, a block of bytes that is live at that equation
alone. A body reads its inputs where they stand: constants and `xs` in the operands of the outer equation, the carry in
its results. The body's results stay in the block until it has run and are then copied to the outer results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ir_passes.jaxpr import ir

Key = tuple[int, int]
"""A value by the equation that computes it and its place among the results."""

REINTERPRETATIONS = frozenset(
    {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "bitcast_convert_type", "name", "sharding_constraint"}
)
# Their jaxprs combine two scalars inside one loop of XLA's; they need no scratch.
COMBINATORS = ("scatter", "reduce", "select_and", "argm", "cum")


@dataclass(frozen=True)
class Scratch:
    """One stretch of scratch bytes.

    Attributes:
        equation, result: the equation that computes it, and which of its results it is.
        shape, dtype, bytes: of the value.
        start, end: the equations between which it is live, both included; a result of a body is live to the end of the
            body, which is the number of the body's equations.
        views: values that are these bytes under another shape or dtype.
        variable: its variable in the jaxpr.
        read: whether any equation reads it, through a view or not.
    """

    equation: int
    result: int
    shape: tuple[int, ...]
    dtype: Any
    bytes: int
    start: int
    end: int
    views: tuple[Key, ...]
    variable: ir.Var = field(repr=False, compare=False)
    eqn: ir.JaxprEqn = field(repr=False, compare=False)
    read: bool = True

    @property
    def name(self) -> str:
        """ "primitive.equation", with the result's place where there are several results."""
        return name_of(self.eqn, (self.equation, self.result))

    @property
    def source(self) -> str:
        """The user's "file:line" that computes it."""
        return ir.source_of(self.eqn)


@dataclass(frozen=True)
class Liveness:
    """The live ranges of one jaxpr and, below it, of the bodies that its equations run.

    Attributes:
        jaxpr: the inlined jaxpr whose equations are counted.
        scratch: in the order of computation.
        held: results of equations that are outputs, or share an output's bytes; never planned.
        views: every value without bytes of its own, of scratch and of held arrays.
        bodies: equation -> the live ranges of the bodies it runs.
        held_bytes: bytes of inputs, constants and outputs.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    scratch: tuple[Scratch, ...]
    held: frozenset[Key]
    views: frozenset[Key]
    bodies: dict[int, tuple["Liveness", ...]]
    held_bytes: int

    @property
    def equations(self) -> int:
        """Number of equations of the jaxpr."""
        return len(self.jaxpr.jaxpr.eqns)

    @property
    def dead(self) -> tuple[Scratch, ...]:
        """Scratch that is computed and never read."""
        return tuple(value for value in self.scratch if not value.read)

    @property
    def total(self) -> int:
        """Bytes if no two values shared any, bodies included."""
        return sum(value.bytes for value in self.scratch) + sum(
            body.total for bodies in self.bodies.values() for body in bodies
        )

    @cached_property
    def profile(self) -> tuple[int, ...]:
        """Live bytes at each equation, and after the last one."""
        steps = [0] * (self.equations + 2)
        for value in self.scratch:
            steps[value.start] += value.bytes
            steps[value.end + 1] -= value.bytes
        live, profile = 0, list[int]()
        for equation, step in enumerate(steps[:-1]):
            live += step
            profile.append(live + self.block_bytes(equation))
        return tuple(profile)

    @property
    def lower_bound(self) -> int:
        """The most bytes that are live at once: no arena can be smaller."""
        return max(self.profile)

    @property
    def peak(self) -> int:
        """The first equation at which `lower_bound` bytes are live."""
        return self.profile.index(self.lower_bound)

    def block_bytes(self, equation: int) -> int:
        """The least scratch of the bodies that an equation runs; of the branches of a cond only one runs."""
        needs = [body.lower_bound for body in self.bodies.get(equation, ())]
        if not needs:
            return 0
        return max(needs) if exclusive(self.jaxpr.jaxpr.eqns[equation]) else sum(needs)

    def report(self, rows: int | None = 40) -> str:
        """A table of the scratch, largest first, with the source line of each value.

        Args:
            rows: number of values to list, None for all; the report says how many it leaves out.
        """
        peak = self.peak
        at = ir.source_of(self.jaxpr.jaxpr.eqns[peak]) if peak < self.equations else "the end"
        lines = [
            f"{self.equations} equations, {len(self.scratch)} scratch values of {self.total} bytes, "
            f"{len(self.dead)} never read; held by the caller: {self.held_bytes} bytes",
            f"at least {self.lower_bound} bytes are live at once, at equation {peak} ({at})",
        ]
        largest = sorted(self.scratch, key=lambda value: (-value.bytes, value.start, value.result))
        for value in largest[:rows]:
            live = f"[{value.start}, {value.end}]"
            views = f" and {len(value.views)} views" if value.views else ""
            shape = ",".join(map(str, value.shape))
            lines.append(
                f"  {value.name:24} {f'{value.dtype}[{shape}]':24} {value.bytes:>12} B  {live:14} {value.source}{views}"
            )
        left_out = len(largest) - len(largest[:rows])
        if left_out:
            lines.append(f"  and {left_out} smaller values")
        for equation, bodies in self.bodies.items():
            for place, body in enumerate(bodies):
                name = name_of(self.jaxpr.jaxpr.eqns[equation], (equation, 0), 1)
                lines += [f"body {place} of {name}:"] + ["  " + line for line in body.report(rows).splitlines()]
        return "\n".join(lines)


def liveness(fn: Callable[..., Any], args: tuple[Any, ...]) -> Liveness:
    """The live ranges of the scratch of `fn(*args)`, which is traced and not run.

    Args:
        fn: any JAX function.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
    """
    return liveness_of(ir.inline(ir.trace(fn, *args)))


def liveness_of(closed: ir.ClosedJaxpr) -> Liveness:
    """The live ranges of an inlined jaxpr; a body that several equations run has one `Liveness`."""
    done: dict[int, Liveness] = {}  # by the id of a body's jaxpr, which its live ranges keep alive

    def of_body(body: ir.ClosedJaxpr) -> Liveness:
        if id(body.jaxpr) not in done:
            done[id(body.jaxpr)] = _liveness_of(body, True, of_body)
        return done[id(body.jaxpr)]

    return _liveness_of(closed, False, of_body)


def _liveness_of(closed: ir.ClosedJaxpr, body: bool, of_body: Callable[[ir.ClosedJaxpr], Liveness]) -> Liveness:
    """The live ranges of a jaxpr; of a `body` the results are scratch and live to its end."""
    jaxpr = closed.jaxpr
    base: dict[Any, Key] = {}  # variables that are not here are held
    ends: dict[Key, int] = {}
    owners: dict[Key, tuple[ir.JaxprEqn, Any]] = {}
    views: dict[Key, list[Key]] = {}
    all_views: set[Key] = set()
    bodies: dict[int, tuple[Liveness, ...]] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for operand in eqn.invars:
            if not isinstance(operand, ir.Literal) and operand in base:
                ends[base[operand]] = i
        view = is_view(eqn)
        for j, result in enumerate(eqn.outvars):
            if view:
                all_views.add((i, j))
                operand = eqn.invars[0]
                if operand in base:
                    base[result] = base[operand]
                    views[base[operand]].append((i, j))
            else:
                base[result] = (i, j)
                ends[i, j], owners[i, j], views[i, j] = i, (eqn, result), []
        nested = bodies_of(eqn)
        if nested:
            bodies[i] = tuple(map(of_body, nested))
    outputs = {base[v] for v in jaxpr.outvars if not isinstance(v, ir.Literal) and v in base}
    read = {key for key, end in ends.items() if end > key[0]} | outputs
    if body:
        ends |= dict.fromkeys(outputs, len(jaxpr.eqns))
    held = frozenset[Key]() if body else frozenset(outputs)
    scratch = tuple(
        Scratch(i, j, *_layout(var), i, ends[i, j], tuple(views[i, j]), var, eqn, (i, j) in read)
        for (i, j), (eqn, var) in owners.items()
        if (i, j) not in held
    )
    callers = (*jaxpr.constvars, *jaxpr.invars, *(owners[key][1] for key in held))
    return Liveness(closed, scratch, held, frozenset(all_views), bodies, sum(_layout(var)[2] for var in callers))


def is_view(eqn: ir.JaxprEqn) -> bool:
    """Whether the result is the operand's bytes, in the same order, under another shape or dtype."""
    if len(eqn.outvars) != 1 or not eqn.invars or isinstance(eqn.invars[0], ir.Literal):
        return False
    operand: Any = eqn.invars[0].aval
    result: Any = eqn.outvars[0].aval
    if eqn.primitive.name == "convert_element_type":
        return operand.dtype == result.dtype
    same_order = eqn.params.get("dimensions") is None or eqn.primitive.name != "reshape"
    return eqn.primitive.name in REINTERPRETATIONS and same_order and bytes_of(operand) == bytes_of(result)


def bodies_of(eqn: ir.JaxprEqn) -> tuple[ir.ClosedJaxpr, ...]:
    """The jaxprs that an equation runs with scratch of their own; of a while the condition, then the body."""
    name = eqn.primitive.name
    if name == "while":
        return eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    called = ir.body_of(eqn)
    if called is not None:
        return (called,)
    return () if name.startswith(COMBINATORS) else tuple(ir.closed(body) for body in ir.sub_jaxprs(eqn))


def exclusive(eqn: ir.JaxprEqn) -> bool:
    """Whether only one of the bodies runs, so that they may share their bytes."""
    return eqn.primitive.name == "cond"


def bytes_of(aval: Any) -> int:
    """Bytes of a value; 0 for what has no shape, as tokens."""
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        return 0
    return math.prod(aval.shape) * aval.dtype.itemsize


def name_of(eqn: ir.JaxprEqn, key: Key, results: int | None = None) -> str:
    """A value's name in reports and errors."""
    several = (len(eqn.outvars) if results is None else results) > 1
    return f"{eqn.primitive.name}.{key[0]}" + (f".{key[1]}" if several else "")


def _layout(variable: Any) -> tuple[tuple[int, ...], Any, int]:
    aval = variable.aval
    return tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None), bytes_of(aval)
