"""Elementwise operations: each result element depends on operand elements at its index.

More than 300 lines: one rule for each operation with its own facts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ir_passes.contract.declared import CROSSING
from ir_passes.contract.statements import Assumption
from ir_passes.jaxpr.dtypes import is_integer
from ir_passes.jaxpr.primitives import ELEMENTWISE, IDENTITIES
from ir_passes.proof import refusals
from ir_passes.proof.agreement import compares_devices
from ir_passes.proof.assumed import assume_names
from ir_passes.proof.intervals import FALSE, TRUE, dtype_range, hull, interval
from ir_passes.proof.numbering import NONE
from ir_passes.proof.owners import COMMON, Common, LaneRows, OneLane, Owner, PoolRows, axis_of
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing import packed_tokens, page_tables
from ir_passes.proof.rules.addressing.access import constant_of
from ir_passes.proof.rules.shapes import over
from ir_passes.proof.rules.survival import outlives
from ir_passes.proof.rules.unchanged import unchanged
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    ActiveCount,
    BroadcastVector,
    DeviceOffset,
    Greatest,
    Implies,
    Iota,
    Negative,
    NotAbove,
    OneHot,
    PageEntry,
    Permuted,
    PlusConstant,
    Range,
    SlotEntry,
    Value,
)


def bounds_of(site: Site, operands: tuple[Value, ...]) -> Any:
    avals = [atom.aval for atom in site.eqn.invars]
    return interval(site.name, [value.range for value in operands], site.eqn.outvars[0].aval, avals)


def combined(site: Site, operands: tuple[Value, ...]) -> Owner:
    pairs = zip(operands, site.shapes, strict=True)
    return site.join(*(over(value.owner, shape, site.shape) for value, shape in pairs))


@rule("bitcast_convert_type", reads="new_dtype")
def reinterpret(site: Site, x: Value) -> list[Value]:
    owner = x.owner
    if axis_of(owner) is not None and axis_of(owner) == len(site.shape) != len(site.shapes[0]):
        owner = site.mixed(*refusals.JOINED_BITS)
    return [Value(owner if not isinstance(owner, PoolRows) else site.unframed(owner))]


_OWN_RULES = frozenset("max min clamp mul convert_element_type select_n".split())
_WITHOUT_PARAMETERS = frozenset("add sub lt le gt ge div rem sign ne eq and or xor".split())
_PLACE_BY_PLACE = "accuracy exponent_bits input_dtype mantissa_bits out_dtype rounding_method y"
"""Parameters of the computation on each element."""


@rule(*(ELEMENTWISE - _OWN_RULES - _WITHOUT_PARAMETERS), ignores=_PLACE_BY_PLACE)
@rule("mul", reads="out_dtype")
@rule(*_WITHOUT_PARAMETERS)
def elementwise(site: Site, *operands: Value) -> list[Value]:
    """Return the operand if an integer operation changes nothing, else join the operands."""
    has_one_result = len(operands) <= 2 and len(site.eqn.outvars) == 1
    value = unchanged(site, *operands) if has_one_result else None
    if value is not None:
        return [value]
    result = Value(combined(site, operands), range=bounds_of(site, operands))
    fact = _FACTS.get(site.name)
    return [result for _ in site.eqn.outvars] if fact is None else [fact(site, result, *operands)]


@rule("max", "min", "clamp")
def limit(site: Site, *operands: Value) -> list[Value]:
    """Return the operand itself if its bounds are within the limits."""
    avals = [atom.aval for atom in site.eqn.invars]
    # the dtype bounds the value, so the limits bound the result
    extent = [value.range or dtype_range(aval) for value, aval in zip(operands, avals, strict=True)]
    bounds = interval(site.name, extent, site.eqn.outvars[0].aval, avals)
    for value, span, shape in zip(operands, extent, site.shapes, strict=True):
        other_ranges = [other.range for other in operands if other is not value]
        if span is None or shape != site.shape or None in other_ranges:
            continue
        if _is_within_limits(site.name, span, other_ranges):
            return [value]
    greatest = [value.fact for value in operands if not isinstance(value.owner, Common)]
    fact = greatest[0] if len(greatest) == 1 and isinstance(greatest[0], Greatest) and site.name != "clamp" else None
    sums = [value.fact for value in operands if isinstance(value.fact, PlusConstant)]
    if fact is None and len(sums) == 1 and site.name == "min":
        fact = NotAbove(sums[0].number, sums[0].by)
    return [Value(combined(site, operands), range=bounds, fact=fact)]


def _is_within_limits(name: str, extent: tuple[int, int], other_ranges: list[Any]) -> bool:
    if name == "max":
        return all(other[1] <= extent[0] for other in other_ranges)
    if name == "min":
        return all(other[0] >= extent[1] for other in other_ranges)
    return len(other_ranges) == 2 and other_ranges[0][1] <= extent[0] and extent[1] <= other_ranges[1][0]


def _multiplied(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Multiply by a constant: a device's index counts rows on previous devices.

    (entry * s + o) * c is entry * sc + oc, and oc < sc since o < s. Indices past every pool stay past it, negative
    indices negative. No fact if the product may wrap.
    """
    for factor, by in ((x, y), (y, x)):
        fact, times = factor.fact, constant_of(by)
        if times is None or result.range is None:
            continue
        if isinstance(fact, DeviceOffset):
            result = result.replace(fact=DeviceOffset(fact.over, fact.rows * times))
        if isinstance(fact, SlotEntry | PageEntry) and getattr(fact, "offset", None) is None and times > 0:
            result = result.replace(fact=replace(fact, stride=fact.stride * times, spare=fact.spare * times))
    return result


def _added(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Add; a row's or page's start plus a smaller offset stays inside.

    A number below row 0 may become a row.
    """
    for row, offset in ((x, y), (y, x)):
        fact, by = row.fact, offset.range
        if not isinstance(fact, SlotEntry | PageEntry) or by is None or by[0] < 0 or result.range is None:
            continue
        if fact.spare + by[1] < fact.stride != 1 and not fact.alternatives & {"below", "lowest"}:
            return result.replace(fact=replace(fact, spare=fact.spare + by[1]))
    by = constant_of(y)
    is_raised = by is not None and by >= 0 and site.shapes[0] == site.shape
    return result.replace(fact=PlusConstant(x.number, by)) if by is not None and is_raised else result


def _subtracted(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Subtract; a global row number minus previous devices' rows is local.

    min(x, y + c) - y is at most c if no subtraction wraps.
    """
    is_paired = site.shapes[0] == site.shapes[1]  # a reshape has the same number
    if is_paired and isinstance(x.fact, NotAbove) and x.fact.number == y.number and result.range is not None:
        result = result.replace(range=(min(result.range[0], x.fact.by), min(result.range[1], x.fact.by)))
    slots = x.fact if isinstance(y.fact, DeviceOffset) and result.range is not None else None
    if isinstance(slots, SlotEntry) and slots.offset is None and slots.stride == 1:
        return result.replace(fact=replace(slots, offset=y.fact))
    return result


def _divided(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Divide; an index divided by a constant groups its rows."""
    by, fact = constant_of(y) or 0, x.fact
    if by > 0 and x.range is not None and x.range[0] >= 0 and site.shapes[0] == site.shape:
        return result.replace(fact=replace(fact, div=fact.div * by)) if isinstance(fact, Iota | Permuted) else result
    return result


def _remainder(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Take the remainder; values below the divisor are unchanged."""
    is_below = x.range is not None and y.range is not None and 0 <= x.range[0] and x.range[1] < y.range[0]
    if is_below and site.shapes[0] == site.shape:
        return x
    return result


def _ordered(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Compare, and record tests for negative numbers.

    An idle lane's number is not below the number of active lanes.
    """
    counted_owner = _owner_by_active_count(site, x, y)
    if counted_owner is not None and site.prover.idle:
        return Value(counted_owner, range=FALSE if site.name in ("lt", "gt") else TRUE)
    negative = site.name == "lt" and constant_of(y) == 0 and site.shapes[0] == site.shape
    fact = Negative(x.number) if negative else _has_row(site, x, y)
    return result.replace(owner=counted_owner or result.owner, fact=fact)


def _owner_by_active_count(site: Site, x: Value, y: Value) -> Owner | None:
    """Return the owner of comparing lane numbers with the active count.

    Each element belongs to its lane, so a fact about an idle lane's element holds for no other lane. The walk without
    idle lanes refuses every use of the element for another lane.
    """
    number, count = (x, y) if site.name in ("lt", "ge") else (y, x)
    shape = site.shapes[0 if number is x else 1]
    if not isinstance(count.fact, ActiveCount) or not isinstance(number.fact, Iota) or shape != site.shape:
        return None
    axis, lanes = number.fact.axis, site.prover.bound.lanes
    if number.fact.div != 1 or shape[axis] != lanes or not isinstance(number.owner, Common):
        return None
    return OneLane(0) if lanes == 1 else LaneRows(axis)


def _equal(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Compare; keys compared with all classes become one-hot."""
    for keys, classes, (shape, full) in ((x, y, site.shapes), (y, x, site.shapes[::-1])):
        if isinstance(classes.fact, Iota) and classes.fact.div == 1 and keys.range is not None:
            vector = _broadcast_keys(keys, shape)
            in_bounds = 0 <= keys.range[0] and keys.range[1] < full[classes.fact.axis] == site.shape[classes.fact.axis]
            if vector is not None and vector.axis != classes.fact.axis and in_bounds:
                result = result.replace(fact=OneHot(vector.number, vector.axis, classes.fact.axis))
    return result


def _broadcast_keys(value: Value, shape: tuple[int, ...]) -> BroadcastVector | None:
    if isinstance(value.fact, BroadcastVector):
        return value.fact
    long_axes = [axis for axis, size in enumerate(shape) if size != 1]
    return BroadcastVector(value.number, long_axes[0]) if len(long_axes) == 1 else None


def _not_equal(site: Site, result: Value, x: Value, y: Value) -> Value:
    eqn = site.maker(site.eqn.invars[0])
    if eqn is not None and eqn.primitive.name in ("sign", "rem") and eqn.invars[0].aval.shape == site.shape:
        source = site.prover.read(site.env, eqn.invars[0])
        if eqn.primitive.name == "sign" and y.range == (1, 1) and source.range is not None and source.range[0] >= 0:
            return result.replace(fact=Implies(source.number, zero=True))
        # for floats, the remainder of zero by zero is nan
        is_exact = source.number != x.number and is_integer(eqn.outvars[0].aval.dtype)
        if eqn.primitive.name == "rem" and y.range == (0, 0) and is_exact:
            return result.replace(fact=Implies(source.number, zero=False, compared=x.number))
    if isinstance(x.fact, Negative) and y.range == (0, 0) and site.shapes[0] == site.shape:
        return x  # a boolean is not false
    return result.replace(fact=_has_row(site, x, y))


def _has_row(site: Site, x: Value, y: Value) -> Implies | None:
    """Compare slot map entries with the null row, row 0."""
    is_plain = isinstance(x.fact, SlotEntry) and x.fact == SlotEntry(x.fact.leaf) and site.shapes[0] == site.shape
    bound = {"gt": 0, "ne": 0, "ge": 1}.get(site.name)
    return Implies(x.number, zero=False) if is_plain and bound is not None and constant_of(y) == bound else None


def _both(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Combine by and; false if the operands contradict each other.

    Operands of two shapes are about other elements of one numbered value.
    """
    if site.shapes[0] != site.shapes[1]:
        return result
    if isinstance(x.fact, Implies) and isinstance(y.fact, Implies):
        if x.fact.number == y.fact.number and x.fact.zero != y.fact.zero:
            return result.replace(range=FALSE)
    for sign, other in ((x, y), (y, x)):
        if isinstance(sign.fact, Negative) and isinstance(other.fact, Implies) and result.range != FALSE:
            if other.fact.compared == sign.fact.number:
                return sign  # a negative number is not zero
    return result


_FACTS: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(("lt", "le", "gt", "ge"), _ordered),
    "eq": _equal,
    "ne": _not_equal,
    "and": _both,
    "mul": _multiplied,
    "add": _added,
    "sub": _subtracted,
    "div": _divided,
    "rem": _remainder,
}
"""Operation -> result with its fact, from the joined result and the operands."""


@rule("convert_element_type", reads="new_dtype", ignores="weak_type sharding")
def convert(site: Site, x: Value) -> list[Value]:
    """Convert; integers within the bounds of the new dtype do not change.

    For other values `survival` gives the fact.
    """
    bounds = bounds_of(site, (x,))
    source, target = site.eqn.invars[0].aval.dtype, site.eqn.outvars[0].aval.dtype
    owner = combined(site, (x,)) if source != target else x.owner
    integers = is_integer(source) and is_integer(target)
    if source == target or (integers and bounds is not None):
        wrapped = isinstance(x.fact, PlusConstant) and x.range is None
        return [x.replace(range=bounds, fact=None if wrapped else x.fact)]
    fact = outlives(x.fact, site.name, source, target)
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=(*owner.view, ("converted", target)))
    return [Value(owner, NONE, bounds, fact)]


@rule(
    *IDENTITIES,
    reads="name",
    ignores="axes concrete_mesh context_mesh copy_semantics devices dst_sharding layout sharding srcs "
    "unconstrained_dims",
)
def identity(site: Site, *operands: Value) -> list[Value]:
    """Return the operands; a declassified one is shared."""
    label = str(site.params.get("name", ""))
    if site.name == "name" and label.startswith(CROSSING):
        site.prover.assumed.add(Assumption.DECLASSIFIED.statement(label.removeprefix(CROSSING)))
        site.prover.device_varying.update(site.prover.varying(site.eqn.invars[0]))
        if compares_devices(site.eqn):
            site.prover.comparisons.append(site.eqn)
        return [Value(COMMON, range=FALSE if site.eqn is site.prover.disagreeing else None)]
    assume_names(site, label)
    return list(operands)


@rule("select_n")
def select(site: Site, predicate: Value, *cases: Value) -> list[Value]:
    """Return the case selected by the predicate's bounds, or a join."""
    low, high = predicate.range or (0, 1)
    if low == high and 0 <= low < len(cases):
        return [cases[low]]
    if all(case.number == cases[0].number for case in cases):
        return [cases[0].replace(owner=site.join(predicate.owner, *(case.owner for case in cases)))]
    owner = combined(site, (predicate, *cases))
    has_shared_scalar = isinstance(predicate.owner, Common) and site.shapes[0] == ()
    versions = {case.version for case in cases}
    if isinstance(owner, PoolRows):
        views = {case.owner.view if isinstance(case.owner, PoolRows) else None for case in cases}
        if not has_shared_scalar or len(views) > 1:
            owner = site.unframed(owner)
    bounds = _counted_from_end(site, predicate, cases) or hull(*(case.range for case in cases))
    intact = cases[0].intact if all(case.intact == cases[0].intact for case in cases) else None
    cases = packed_tokens.real_only(site, predicate, cases)
    fact = _guarded_slots(site, predicate, cases) or page_tables.chosen(site, predicate, cases)
    return [Value(owner, NONE, bounds, fact, intact, versions.pop() if len(versions) == 1 else None)]


def _counted_from_end(site: Site, predicate: Value, cases: tuple[Value, ...]) -> Range | None:
    """Return the bounds of `where(x < 0, x + c, x)`.

    They join numbers from 0 on and negative numbers plus c: NumPy's remainder by a positive number, or an index from
    the end of an axis.
    """
    x, raised = cases[0], cases[1].fact if len(cases) == 2 else None
    bounds = x.range or dtype_range(site.eqn.invars[1].aval)
    if not isinstance(raised, PlusConstant) or bounds is None or raised.number != x.number:
        return None
    if predicate.fact != Negative(x.number) or site.shapes[0] != site.shape:
        return None
    parts = [(max(0, bounds[0]), bounds[1])] if bounds[1] >= 0 else []
    parts += [(bounds[0] + raised.by, min(bounds[1], -1) + raised.by)] if bounds[0] < 0 else []
    return min(part[0] for part in parts), max(part[1] for part in parts)


def _guarded_slots(site: Site, predicate: Value, cases: tuple[Value, ...]) -> SlotEntry | None:
    """Return the fact of a slot map guarded by a select.

    For lanes that are switched off, it gives a row that no lane owns.
    """
    slots = [case.fact for case in cases if isinstance(case.fact, SlotEntry)]
    other_cases = [case for case in cases if not isinstance(case.fact, SlotEntry)]
    if not slots or not other_cases or any(fact != slots[0] for fact in slots):
        return None
    alternatives = {_unowned_kind(site, case, slots[0]) for case in other_cases}
    # `offset` is subtracted from a fixed replacement too, which gives another row on each device
    if None in alternatives or (alternatives - {"past"} and slots[0].offset is not None):
        return None
    picks = tuple(isinstance(case.fact, SlotEntry) for case in cases)
    previous_guards = () if slots[0].guard is None else (slots[0].guard,)
    guard = site.prover.number(("guard", picks, len(previous_guards)), predicate.number, *previous_guards)
    offsets = [case.range[1] for case in other_cases if case.range is not None and case.range[1] < slots[0].stride]
    spare = max(slots[0].spare, *offsets, 0)  # of elements of the null row, too
    predicate_fact = predicate.fact if site.shapes[0] == site.shape and len(cases) == 2 else None
    non_null = slots[0].non_null or predicate_fact == Implies(cases[1].number, zero=False)
    alternatives = slots[0].alternatives.union(filter(None, alternatives))
    return replace(slots[0], guard=guard, alternatives=alternatives, spare=spare, non_null=non_null)


def _unowned_kind(site: Site, row: Value, slots: SlotEntry) -> str | None:
    """Return the kind of an unowned row, as in `SlotEntry.alternatives`."""
    kind, entry = page_tables.nowhere(site, row, slots), site.prover.bound.inputs[slots.leaf].entry
    is_null = (
        row.range is not None and 0 <= row.range[0] and row.range[1] < slots.stride and getattr(entry, "null", False)
    )
    return "null" if kind is None and is_null and isinstance(row.owner, Common) else kind
