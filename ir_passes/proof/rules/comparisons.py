"""Comparisons of lane numbers, of keys with classes, and with zero."""

from ir_passes.proof.intervals import FALSE, TRUE
from ir_passes.proof.owners import Common, LaneRows, OneLane, Owner
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing.access import constant_of
from ir_passes.proof.rules.elementwise import bounds_of, combined, has_row
from ir_passes.proof.site import Site
from ir_passes.proof.values import ActiveCount, BroadcastVector, Iota, Negative, OneHot, Value


@rule("lt", "le", "gt", "ge")
def compare(site: Site, x: Value, y: Value) -> list[Value]:
    """Compare, and record tests for negative numbers.

    An idle lane's number is not below the number of active lanes.
    """
    counted_owner = _owner_by_active_count(site, x, y)
    if counted_owner is not None and site.prover.idle:
        return [Value(counted_owner, range=FALSE if site.name in ("lt", "gt") else TRUE)]
    negative = site.name == "lt" and constant_of(y) == 0 and site.shapes[0] == site.shape
    fact = Negative(x.number) if negative else has_row(site, x, y)
    return [Value(counted_owner or combined(site, (x, y)), range=bounds_of(site, (x, y)), fact=fact)]


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


@rule("eq")
def equal(site: Site, x: Value, y: Value) -> list[Value]:
    """Compare; keys compared with all classes become one-hot."""
    fact = None
    shapes = site.shapes
    for (keys, shape), (classes, full) in (((x, shapes[0]), (y, shapes[1])), ((y, shapes[1]), (x, shapes[0]))):
        if isinstance(classes.fact, Iota) and classes.fact.div == 1 and keys.range is not None:
            vector = _broadcast_keys(keys, shape)
            count = full[classes.fact.axis]
            in_bounds = 0 <= keys.range[0] and keys.range[1] < count
            if vector is not None and vector.axis != classes.fact.axis and in_bounds:
                fact = OneHot(vector.number, vector.axis, classes.fact.axis)
    return [Value(combined(site, (x, y)), range=bounds_of(site, (x, y)), fact=fact)]


def _broadcast_keys(value: Value, shape: tuple[int, ...]) -> BroadcastVector | None:
    if isinstance(value.fact, BroadcastVector):
        return value.fact
    long_axes = [axis for axis, size in enumerate(shape) if size != 1]
    return BroadcastVector(value.number, long_axes[0]) if len(long_axes) == 1 else None
