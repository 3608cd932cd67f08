"""Comparisons of lane numbers, of keys with classes, and with zero."""

from ir_passes.jaxpr.dtypes import is_integer
from ir_passes.proof.intervals import FALSE, TRUE
from ir_passes.proof.owners import Common, LaneRows, OneLane, Owner
from ir_passes.proof.rules.addressing.access import constant_of
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    ActiveCount,
    BroadcastVector,
    HasRow,
    Implies,
    Iota,
    Negative,
    OneHot,
    SlotEntry,
    Value,
)


def ordered(site: Site, result: Value, x: Value, y: Value) -> Value:
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


def equal(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Compare; keys compared with all classes become one-hot."""
    for keys, classes, (shape, full) in ((x, y, site.shapes), (y, x, site.shapes[::-1])):
        if isinstance(classes.fact, Iota) and classes.fact.div == 1 and keys.range is not None:
            vector = _broadcast_keys(keys, shape)
            in_bounds = 0 <= keys.range[0] and keys.range[1] < full[classes.fact.axis]
            if vector is not None and vector.axis != classes.fact.axis and in_bounds:
                result = result.replace(fact=OneHot(vector.number, vector.axis, classes.fact.axis))
    return result


def _broadcast_keys(value: Value, shape: tuple[int, ...]) -> BroadcastVector | None:
    if isinstance(value.fact, BroadcastVector):
        return value.fact
    long_axes = [axis for axis, size in enumerate(shape) if size != 1]
    return BroadcastVector(value.number, long_axes[0]) if len(long_axes) == 1 else None


def not_equal(site: Site, result: Value, x: Value, y: Value) -> Value:
    eqn = site.maker(site.eqn.invars[0])
    if eqn is not None and eqn.primitive.name in ("sign", "rem"):
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


def _has_row(site: Site, x: Value, y: Value) -> HasRow | None:
    """Compare slot map entries with the null row."""
    is_plain = isinstance(x.fact, SlotEntry) and x.fact == SlotEntry(x.fact.leaf) and site.shapes[0] == site.shape
    bound = {"gt": 0, "ne": 0, "ge": 1}.get(site.name)
    return HasRow(x.number) if is_plain and bound is not None and constant_of(y) == bound else None


def both(site: Site, result: Value, x: Value, y: Value) -> Value:
    """Combine by and; false if the operands contradict each other."""
    if isinstance(x.fact, Implies) and isinstance(y.fact, Implies):
        if x.fact.number == y.fact.number and x.fact.zero != y.fact.zero:
            return result.replace(range=FALSE)
    for sign, other in ((x, y), (y, x)):
        if isinstance(sign.fact, Negative) and isinstance(other.fact, Implies) and result.range != FALSE:
            if other.fact.compared == sign.fact.number and site.shapes[0] == site.shapes[1]:
                return sign  # a negative number is not zero
    return result
