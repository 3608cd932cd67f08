"""Check an arena plan against the jaxpr alone, without code of `liveness` or `planner`.

From the equation that computes a value to the last equation that reads the value or a view of it, no other value may
use the same bytes. Both equations are included: an equation reads its operands while it writes its results.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import SCALAR_BODIES, VIEWS
from ir_passes.scratch.plan import Block, PlacedBuffer, Plan, PlanError

Key = tuple[int, int]
ALIGNMENT = 64  # XLA's alignment on CPUs, and the size of a cache line


@dataclass
class _Range:
    name: str
    low: int
    high: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.name} in bytes [{self.low}, {self.high}) live at equations [{self.first}, {self.last}]"


def verify_plan(closed: ir.ClosedJaxpr, plan: Plan, *, opaque_scratch: Callable[[Any], int] | None = None) -> int:
    """Check a plan; return the number of value pairs that share bytes over time.

    Args:
        closed: the inlined jaxpr that the plan is for.
        plan: the plan to check.
        opaque_scratch: equation -> scratch bytes of its operation in addition to the results; None for 0 bytes.

    Raises:
        PlanError: the plan is wrong; the message names the equation, both values and both byte ranges.
    """
    scratch_of = opaque_scratch or (lambda eqn: 0)
    return _verify(closed.jaxpr, plan, scratch_of, None)


def _verify(
    jaxpr: Any,
    plan: Plan,
    scratch_of: Callable[[Any], int],
    checked: dict[tuple[int, int], tuple[Any, int]] | None,
) -> int:
    """Check a plan and its bodies' plans; return the number of pairs sharing bytes.

    Args:
        checked: (id of a body's jaxpr, id of its checked plan) -> (the jaxpr, number of pairs that share bytes). The
            reference to the jaxpr keeps its id unique. None for the outermost jaxpr.
    """
    outermost, checked = checked is None, {} if checked is None else checked
    homes = _homes(jaxpr, plan.views)
    last = _last_reads(jaxpr, homes, outermost)
    placed = _placements(jaxpr, plan, homes, last, outermost)
    ranges = [_Range(p.name, p.offset, p.offset + p.bytes, key[0], last[key]) for key, p in placed.items()] + list(
        _block_ranges(jaxpr, plan, scratch_of)
    )
    for r in ranges:
        if r.low % ALIGNMENT:
            raise PlanError(f"equation {r.first}: {r} is not aligned to {ALIGNMENT} bytes")
        if r.low < 0 or r.high > plan.size:
            raise PlanError(f"equation {r.first}: {r} is outside the arena of {plan.size} bytes")
    shared = _check_overlap(ranges)
    for key, p in placed.items():
        if (p.start, p.end) != (key[0], last[key]):
            raise PlanError(
                f"equation {key[0]}: {p.name} is live at equations [{key[0]}, {last[key]}], "
                f"the plan keeps its bytes at [{p.start}, {p.end}]"
            )
    for equation, block in plan.blocks.items():
        bodies = _bodies(jaxpr.eqns[equation])
        _check_block(equation, block, bodies, jaxpr.eqns[equation].primitive.name == "cond")
        for body, (_, inner) in zip(bodies, block.bodies, strict=True):
            pair = id(body.jaxpr), id(inner)
            if pair not in checked:
                try:
                    pairs = _verify(body.jaxpr, inner, scratch_of, checked)
                except PlanError as error:
                    raise PlanError(f"equation {equation}, in its body: {error}") from error
                checked[pair] = body.jaxpr, pairs
            shared += checked[pair][1]
    return shared


def _homes(jaxpr: Any, views: Collection[Key]) -> dict[Any, Key]:
    """Return variable -> value with its bytes; variables of the caller are absent."""
    homes: dict[Any, Key] = {}
    unmatched_views = set(views)
    for i, eqn in enumerate(jaxpr.eqns):
        for j, var in enumerate(eqn.outvars):
            if (i, j) not in unmatched_views:
                homes[var] = (i, j)
                continue
            unmatched_views.discard((i, j))
            if not _same_bytes(eqn):
                raise PlanError(f"equation {i}: result {j} of {eqn.primitive.name} is no view of its operand's bytes")
            if eqn.invars[0] in homes:
                homes[var] = homes[eqn.invars[0]]
    if unmatched_views:
        raise PlanError(f"the plan has views that no equation computes: {sorted(unmatched_views)}")
    return homes


def _last_reads(jaxpr: Any, homes: dict[Any, Key], outermost: bool) -> dict[Key, int]:
    last: dict[Key, int] = {}
    end = len(jaxpr.eqns)
    if not outermost:  # the results of a body are copied out after its last equation
        last.update({homes[var]: end for var in _variables(jaxpr.outvars) if var in homes})
    for i in range(end - 1, -1, -1):
        for var in _variables(jaxpr.eqns[i].invars):
            if var in homes:
                last.setdefault(homes[var], i)
        for j in range(len(jaxpr.eqns[i].outvars)):
            last.setdefault((i, j), i)
    return last


def _placements(
    jaxpr: Any, plan: Plan, homes: dict[Any, Key], last: dict[Key, int], outermost: bool
) -> dict[Key, PlacedBuffer]:
    """Return the placements by value.

    Raises:
        PlanError: a scratch value is missing, is placed twice or has another size; or an output or view is placed.
    """
    outputs = {homes[var] for var in _variables(jaxpr.outvars) if var in homes} if outermost else set[Key]()
    placed: dict[Key, PlacedBuffer] = {}
    for p in plan.placements:
        key = (p.equation, p.result)
        if key in placed:
            raise PlanError(f"equation {p.equation}: {p.name} is placed twice")
        if key in outputs:
            raise PlanError(f"equation {p.equation}: {p.name} is an output or has one as a view; it is held")
        if key not in last or key in plan.views:
            raise PlanError(f"equation {p.equation}: {p.name} is no value with bytes of its own")
        size = _size(jaxpr.eqns[p.equation].outvars[p.result].aval)
        if p.bytes != size:
            raise PlanError(f"equation {p.equation}: {p.name} has {size} bytes, the plan has {p.bytes} for it")
        placed[key] = p
    for i, j in sorted(set(last) - set(placed) - outputs - set(plan.views)):
        raise PlanError(f"equation {i}: result {j} of {jaxpr.eqns[i].primitive.name} has no place in the plan")
    return placed


def _check_overlap(ranges: list[_Range]) -> int:
    """Return the number of pairs that share bytes at different times.

    Raises:
        PlanError: two values that are live at the same time share bytes.
    """
    ranges = sorted((r for r in ranges if r.high > r.low), key=lambda r: r.first)
    low, high = np.array([r.low for r in ranges], np.int64), np.array([r.high for r in ranges], np.int64)
    last = np.array([r.last for r in ranges], np.int64)
    shared = 0
    for i, new in enumerate(ranges):
        same_bytes = (low[:i] < new.high) & (high[:i] > new.low)
        both_live = same_bytes & (last[:i] >= new.first)
        if both_live.any():
            raise PlanError(f"equation {new.first}: {new} overlaps {ranges[int(both_live.argmax())]}")
        shared += int(np.count_nonzero(same_bytes))
    return shared


def _block_ranges(jaxpr: Any, plan: Plan, scratch_of: Callable[[Any], int]) -> Iterator[_Range]:
    scratch = {i: scratch_of(eqn) for i, eqn in enumerate(jaxpr.eqns) if scratch_of(eqn)}
    expected = {i for i, eqn in enumerate(jaxpr.eqns) if _bodies(eqn)} | set(scratch)
    if set(plan.blocks) != expected:
        raise PlanError(f"equations {sorted(expected)} need blocks, the plan has them for {sorted(plan.blocks)}")
    for i, size in scratch.items():
        if plan.blocks[i].bytes < size:
            name = jaxpr.eqns[i].primitive.name
            raise PlanError(
                f"equation {i}: {name} uses {size} bytes of scratch, the plan gives it {plan.blocks[i].bytes}"
            )
    for i, block in plan.blocks.items():
        yield _Range(f"bodies of {jaxpr.eqns[i].primitive.name}.{i}", block.offset, block.offset + block.bytes, i, i)


def _check_block(equation: int, block: Block, bodies: list[ir.ClosedJaxpr], one_runs: bool) -> None:
    if len(bodies) != len(block.bodies):
        raise PlanError(f"equation {equation} runs {len(bodies)} bodies, the plan has {len(block.bodies)}")
    end = 0
    for offset, inner in sorted(block.bodies, key=lambda body: body[0]):
        if offset % ALIGNMENT or offset < 0 or offset + inner.size > block.bytes:
            raise PlanError(
                f"equation {equation}: a body in bytes [{offset}, {offset + inner.size}) of a block of {block.bytes}"
            )
        if offset < end and not one_runs:
            raise PlanError(f"equation {equation}: bodies overlap: one begins at {offset}, another ends at {end}")
        end = max(end, offset + inner.size)


def _bodies(eqn: Any) -> list[ir.ClosedJaxpr]:
    if eqn.primitive.name == "while":
        return [eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]]
    named = ir.body_of(eqn)
    if named is not None:
        return [named]
    return [] if eqn.primitive.name in SCALAR_BODIES else [ir.closed(body) for body in ir.sub_jaxprs(eqn)]


def _same_bytes(eqn: Any) -> bool:
    """True if the equation only changes the shape or dtype of its operand's bytes."""
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


def _variables(atoms: Any) -> Iterator[Any]:
    return (atom for atom in atoms if not isinstance(atom, ir.Literal))


def _size(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return 0 if shape is None or dtype is None else prod(shape) * dtype.itemsize
