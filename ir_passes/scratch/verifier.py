"""Check of an arena plan against the jaxpr, without code of `liveness` or `planner`.

From a value's equation to the last reader of it or its view, both included, no other value may use its bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import SCALAR_BODIES, VIEWS
from ir_passes.scratch.liveness import Scratch

ALIGNMENT = 64
"""XLA's alignment on CPUs in bytes, and a cache line."""


class PlanError(ValueError):
    """Two live values overlap, or a plan does not match its function."""


@dataclass(frozen=True)
class Block:
    """Bytes for the bodies and declared scratch of an equation.

    Attributes:
        bodies: ascending (offset in the block, plan).
    """

    offset: int
    bytes: int
    bodies: tuple[tuple[int, "Plan"], ...]


@dataclass(frozen=True)
class Plan:
    """Offsets for the temporaries of an inlined jaxpr.

    Attributes:
        placements: temporaries with offsets, in the order of computation.
        blocks: by equation.
        size: of the arena.
        lower_bound: peak of live bytes.
    """

    jaxpr: ir.ClosedJaxpr = field(repr=False)
    placements: tuple[Scratch, ...]
    blocks: dict[int, Block]
    size: int
    lower_bound: int

    def report(self, rows: int = 10) -> str:
        """Return the largest temporaries and all blocks, with source lines."""
        lines = [f"scratch before fusion: {self.lower_bound} bytes are live at once, planned in {self.size}"]
        largest = sorted(self.placements, key=lambda value: (-value.bytes, value.start))
        for value in largest[:rows]:
            place = f"equations [{value.start}, {value.end}] {value.name}  {ir.source_of(value.eqn)}"
            lines.append(f"  {value.bytes} bytes at {place}")
        if len(largest) > rows:
            lines.append(f"  and {len(largest) - rows} smaller values")
        for i, block in sorted(self.blocks.items()):
            name = self.jaxpr.jaxpr.eqns[i].primitive.name
            lines.append(f"  {block.bytes} bytes at equation {i}: bodies of {name}.{i}")
        return "\n".join(lines)


class _Range(NamedTuple):
    name: str
    low: int
    high: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.name} in bytes [{self.low}, {self.high}) live at equations [{self.first}, {self.last}]"


def verify_plan(closed: ir.ClosedJaxpr, plan: Plan, *, opaque_scratch: Callable[[Any], int] | None = None) -> None:
    """Check the plan of an inlined jaxpr.

    Args:
        opaque_scratch: equation -> scratch bytes besides the results; None for 0.

    Raises:
        PlanError: with equation, values and byte ranges.
    """
    _verify(closed.jaxpr, plan, opaque_scratch or (lambda eqn: 0), False, set())


def _verify(
    jaxpr: Any, plan: Plan, scratch_of: Callable[[Any], int], is_body: bool, checked: set[tuple[int, int]]
) -> None:
    """Check a plan and its bodies' plans, without those checked before."""
    ranges = [*_value_ranges(jaxpr, plan, is_body), *_block_ranges(jaxpr, plan, scratch_of)]
    for r in ranges:
        if r.low % ALIGNMENT:
            raise PlanError(f"equation {r.first}: {r} is not aligned to {ALIGNMENT} bytes")
        if r.low < 0 or r.high > plan.size:
            raise PlanError(f"equation {r.first}: {r} is outside the arena of {plan.size} bytes")
    _check_overlap(ranges)
    for value, r in zip(plan.placements, ranges, strict=False):
        if (value.start, value.end) != (r.first, r.last):
            reason = f"the plan keeps its bytes at [{value.start}, {value.end}]"
            raise PlanError(f"equation {r.first}: {r.name} is live at equations [{r.first}, {r.last}], {reason}")
    for i, block in plan.blocks.items():
        for body, (_, inner) in zip(_bodies(jaxpr.eqns[i]), block.bodies, strict=True):
            if (id(body), id(inner)) in checked:
                continue
            try:
                _verify(body, inner, scratch_of, True, checked)
            except PlanError as error:
                raise PlanError(f"equation {i}, in its body: {error}") from error
            checked.add((id(body), id(inner)))


def _value_ranges(jaxpr: Any, plan: Plan, is_body: bool) -> Iterator[_Range]:
    home: dict[Any, tuple[int, int]] = {}  # variable -> (equation, result) with its bytes
    last: dict[tuple[int, int], int] = {}  # -> last equation that reads the bytes
    for i, eqn in enumerate(jaxpr.eqns):
        last.update((home[var], i) for var in ir.variables(eqn.invars) if var in home)
        for j, var in enumerate(eqn.outvars):
            if not _same_bytes(eqn):
                home[var], last[i, j] = (i, j), i
            elif eqn.invars[0] in home:
                home[var] = home[eqn.invars[0]]
    for var in ir.variables(jaxpr.outvars):
        if var in home and is_body:  # results of a body are copied out after its last equation
            last[home[var]] = len(jaxpr.eqns)
        elif var in home:
            last.pop(home[var], None)
    for value in plan.placements:
        i, j = key = value.equation, value.result
        end = last.pop(key, None)
        if end is None:
            raise PlanError(f"equation {i}: {value.name} is placed twice, or is an output, a view or no value")
        size = _size(jaxpr.eqns[i].outvars[j].aval)
        if value.bytes != size:
            raise PlanError(f"equation {i}: {value.name} has {size} bytes, the plan has {value.bytes} for it")
        yield _Range(value.name, value.offset, value.offset + size, i, end)
    for i, j in sorted(last):
        raise PlanError(f"equation {i}: result {j} of {jaxpr.eqns[i].primitive.name} has no place in the plan")


def _block_ranges(jaxpr: Any, plan: Plan, scratch_of: Callable[[Any], int]) -> Iterator[_Range]:
    needed = [i for i, eqn in enumerate(jaxpr.eqns) if _bodies(eqn) or scratch_of(eqn)]
    if sorted(plan.blocks) != needed:
        raise PlanError(f"equations {needed} need blocks, the plan has them for {sorted(plan.blocks)}")
    for i, block in plan.blocks.items():
        eqn, end = jaxpr.eqns[i], 0
        if len(_bodies(eqn)) != len(block.bodies):
            raise PlanError(f"equation {i} runs {len(_bodies(eqn))} bodies, the plan has {len(block.bodies)}")
        for offset, inner in block.bodies:
            high = offset + inner.size
            if offset % ALIGNMENT or offset < 0 or high > block.bytes:
                raise PlanError(f"equation {i}: a body in bytes [{offset}, {high}) of a block of {block.bytes}")
            if offset < end and eqn.primitive.name != "cond":
                raise PlanError(f"equation {i}: bodies overlap: one begins at {offset}, another ends at {end}")
            end = max(end, high)
        if block.bytes - end < scratch_of(eqn):
            needs = f"{eqn.primitive.name} uses {scratch_of(eqn)} bytes of scratch"
            raise PlanError(f"equation {i}: {needs}, the plan gives it {block.bytes - end}")
        yield _Range(f"bodies of {eqn.primitive.name}.{i}", block.offset, block.offset + block.bytes, i, i)


def _check_overlap(ranges: Sequence[_Range]) -> None:
    ranges = sorted((r for r in ranges if r.high > r.low), key=lambda r: r.first)
    low, high, last = (np.array([r[field] for r in ranges], np.int64) for field in (1, 2, 4))
    for i, new in enumerate(ranges):
        overlap = (low[:i] < new.high) & (high[:i] > new.low) & (last[:i] >= new.first)
        if overlap.any():
            raise PlanError(f"equation {new.first}: {new} overlaps {ranges[int(overlap.argmax())]}")


def _bodies(eqn: Any) -> list[Any]:
    if eqn.primitive.name == "while":
        return [eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr]
    body = ir.body_of(eqn)
    if body is not None:
        return [body.jaxpr]
    return [] if eqn.primitive.name in SCALAR_BODIES else list(ir.sub_jaxprs(eqn))


def _same_bytes(eqn: Any) -> bool:
    if len(eqn.outvars) != 1 or not eqn.invars or isinstance(eqn.invars[0], ir.Literal):
        return False
    operand, result = eqn.invars[0].aval, eqn.outvars[0].aval
    match eqn.primitive.name:
        case "reshape":
            return eqn.params.get("dimensions") is None
        case "convert_element_type":
            return operand.dtype == result.dtype
        case name:
            return name in VIEWS and _size(operand) == _size(result)


def _size(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return 0 if shape is None or dtype is None else prod(shape) * dtype.itemsize
