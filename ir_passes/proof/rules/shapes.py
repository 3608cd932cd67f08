"""Operations that move elements without computation."""

import math
from dataclasses import replace

from ir_passes.proof import refusals
from ir_passes.proof.intervals import hull
from ir_passes.proof.numbering import NONE
from ir_passes.proof.owners import COMMON, LaneRows, Mixed, OneLane, Owner, PoolRows, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing.packed_tokens import relocated
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    BroadcastVector,
    Counts,
    Fact,
    Implies,
    Iota,
    OwnTokens,
    Permuted,
    Tiles,
    Value,
)
from ir_passes.proof.views import reshaped, transposed

Shape = tuple[int, ...]


def over(owner: Owner, shape: Shape, result: Shape) -> Owner:
    axis = axis_of(owner)
    return owner if axis is None else stretched(owner, shape[axis], result[axis])


def stretched(owner: Owner, old_size: int, new_size: int) -> Owner:
    """Return the owner after its axis of length 1 is broadcast."""
    if isinstance(owner, LaneRows) and old_size == 1 != new_size:
        return OneLane(owner.start, owner.split, owner.unreduced, owner.packed)
    if isinstance(owner, PoolRows) and old_size == 1 != new_size:
        return replace(owner, inner=new_size)  # every index is of the only row
    return owner


def place_after_reshape(axis: int, old_shape: Shape, new_shape: Shape) -> tuple[int, int, int] | None:
    """Locate an axis after a row-major reshape.

    Returns:
        The new axis, and the numbers of new indices per old index and of old indices per new index, one of them 1. None
            if neither axis is a prefix of the other, and for an array without elements.
    """
    if not math.prod(new_shape):
        return None
    preceding = math.prod(old_shape[:axis])
    stride = math.prod(old_shape[axis + 1 :])
    new_preceding = 1
    for new_axis, size in enumerate(new_shape):
        if new_preceding == preceding and (size > 1 or old_shape[axis] == 1):
            new_stride = math.prod(new_shape[new_axis + 1 :])
            is_multiple = stride % new_stride == 0 or new_stride % stride == 0
            if is_multiple and size * new_stride == old_shape[axis] * stride:
                return new_axis, max(stride // new_stride, 1), max(new_stride // stride, 1)
            return None
        new_preceding *= size
    return None


def reshape_owner(site: Site, owner: Owner, old_shape: Shape, new_shape: Shape) -> Owner:
    axis = axis_of(owner)
    if axis is None:
        return owner
    place = place_after_reshape(axis, old_shape, new_shape)
    if place is not None:
        new_axis, per_old, per_new = place
        if per_old == per_new == 1:
            return moved(owner, new_axis)
        if isinstance(owner, PoolRows):
            # several rows at one index are refused: after a split, a slice could drop some
            if owner.inner * per_old % per_new == 0:
                return replace(owner, axis=new_axis, inner=owner.inner * per_old // per_new)
        if isinstance(owner, LaneRows) and owner.order is None:
            if per_new == 1:
                return replace(owner, axis=new_axis, inner=owner.inner * per_old)
            if owner.inner % per_new == 0:
                return replace(owner, axis=new_axis, inner=owner.inner // per_new)
    text = refusals.RESHAPED_ROWS if isinstance(owner, PoolRows) else refusals.RESHAPED_LANES
    return site.mixed(*text(old=old_shape, new=new_shape, axis=axis))


def _tiles(owner: Owner, old_shape: Shape, new_shape: Shape) -> Tiles | None:
    if not isinstance(owner, LaneRows) or owner.inner != 1 or owner.order is not None or owner.unreduced or owner.split:
        return None
    first = _merged(owner.axis, new_shape, old_shape)
    return None if first is None else Tiles(replace(owner, axis=0), first, new_shape[first + 1])


def _owner_of_tiles(fact: Fact | None, old_shape: Shape, new_shape: Shape) -> Owner | None:
    if not isinstance(fact, Tiles):
        return None
    return next(
        (moved(fact.rows, axis) for axis in range(len(new_shape)) if _merged(axis, old_shape, new_shape) == fact.tiles),
        None,
    )


def _merged(axis: int, split: Shape, merged: Shape) -> int | None:
    """Return `axis` if only it and the next axis of `split` are merged."""
    if len(split) != len(merged) + 1 or not math.prod(merged):
        return None
    parts = merged[:axis], merged[axis + 1 :]
    matches = (split[:axis], split[axis + 2 :]) == parts and split[axis] * split[axis + 1] == merged[axis]
    return axis if matches else None


def reshaped_value(site: Site, x: Value) -> Value:
    old_shape, new_shape = site.shapes[0], site.shape
    owner = reshape_owner(site, x.owner, old_shape, new_shape)
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=reshaped(owner.view, old_shape, new_shape))
    fact = relocated(x.fact, lambda axis: _surviving_axis(axis, old_shape, new_shape))
    if isinstance(x.fact, Iota):
        place = place_after_reshape(x.fact.axis, old_shape, new_shape)
        fact = Iota(place[0], x.fact.div * place[1]) if place is not None and place[2] == 1 else None
    fact = fact or _fact_across_unit_axes(x.fact, old_shape, new_shape)
    if fact is None and isinstance(x.fact, OwnTokens):
        rows = reshape_owner(site, x.fact.rows, old_shape, new_shape)
        fact = replace(x.fact, rows=rows) if isinstance(rows, LaneRows) else None
    if isinstance(owner, Mixed):
        fact = fact or _tiles(x.owner, old_shape, new_shape)
        owner = _owner_of_tiles(x.fact, old_shape, new_shape) or owner
    intact = x.intact and x.intact.seen(lambda view: reshaped(view, old_shape, new_shape))
    return Value(owner, x.number, x.range, fact, intact, x.version)


def _surviving_axis(axis: int, old_shape: Shape, new_shape: Shape) -> int | None:
    place = place_after_reshape(axis, old_shape, new_shape)
    return place[0] if place is not None and place[1:] == (1, 1) else None


def _fact_across_unit_axes(fact: Fact | None, old_shape: Shape, new_shape: Shape) -> Fact | None:
    if [size for size in old_shape if size != 1] != [size for size in new_shape if size != 1]:
        return None
    if isinstance(fact, Permuted | Counts):
        return fact if old_shape[:1] == new_shape[:1] else None
    return fact if isinstance(fact, Implies) else None


@rule("squeeze", reads="dimensions")
@rule("reshape", reads="new_sizes", ignores="sharding", accepts={"dimensions": (None,)})
def reshape(site: Site, x: Value) -> list[Value]:
    """Reshape row-major: the normal form has no `dimensions`."""
    return [reshaped_value(site, x)]


@rule("broadcast_in_dim", reads="shape broadcast_dimensions", ignores="sharding")
def broadcast(site: Site, x: Value, *_: Value) -> list[Value]:
    old_shape, new_shape = site.shapes[0], site.shape
    if math.prod(old_shape) == math.prod(new_shape):
        return [reshaped_value(site, x)]
    dims = tuple(map(int, site.params["broadcast_dimensions"]))
    axis = axis_of(x.owner)
    owner = x.owner if axis is None else stretched(moved(x.owner, dims[axis]), old_shape[axis], new_shape[dims[axis]])
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=(*owner.view, ("broadcast",)))
    fact = relocated(x.fact, lambda axis: dims[axis] if old_shape[axis] == new_shape[dims[axis]] else None)
    long_axes = [axis for axis, size in enumerate(old_shape) if size != 1]
    if fact is None and len(long_axes) == 1:
        fact = BroadcastVector(x.number, dims[long_axes[0]])
    return [Value(owner, NONE, x.range, fact, None, x.version)]


@rule("transpose", reads="permutation")
def transpose(site: Site, x: Value) -> list[Value]:
    permutation = tuple(map(int, site.params["permutation"]))
    owner = moved(x.owner, permutation.index)
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=transposed(owner.view, permutation))
    intact = x.intact and x.intact.seen(lambda view: transposed(view, permutation))
    return [Value(owner, NONE, x.range, relocated(x.fact, permutation.index), intact, x.version)]


@rule("rev", reads="dimensions")
def reverse(site: Site, x: Value) -> list[Value]:
    owner = site.apart(x.owner, site.params["dimensions"], refusals.REVERSED_LANES)
    return [Value(owner, range=x.range)]


@rule("pad", reads="padding_config")
def pad(site: Site, x: Value, filler: Value) -> list[Value]:
    if not any(map(any, site.params["padding_config"])):
        return [x]
    owner, axis = x.owner, axis_of(x.owner)
    if axis is not None:
        low, high, gap = map(int, site.params["padding_config"][axis])
        if low or high or gap:
            is_plain = isinstance(owner, LaneRows) and owner.order is None and gap == 0 <= min(low, high)
            if isinstance(owner, LaneRows) and is_plain and low % owner.inner == 0:
                owner = replace(owner, start=owner.start - low // owner.inner, unreduced=())
            else:
                owner = site.mixed(*refusals.PADDED_LANES)
    return [Value(site.join(owner, filler.owner), range=hull(x.range, filler.range))]


@rule("tile", reads="reps repeats")
def tile(site: Site, x: Value) -> list[Value]:
    repeats = tuple(site.params.get("reps") or site.params["repeats"])
    axes = [axis for axis, times in enumerate(repeats) if times != 1]
    return [Value(site.apart(x.owner, axes, refusals.REPEATED_LANES), range=x.range)]


@rule("iota", reads="dtype shape dimension", ignores="sharding")
def iota(site: Site, *_: Value) -> list[Value]:
    axis = int(site.params["dimension"])
    number = site.prover.index_number(site.params["dtype"], site.shape, axis)
    return [Value(COMMON, number, (0, max(0, site.shape[axis] - 1)), Iota(axis))]


@rule("empty2", "create_token", "platform_index", ignores="dtype memory_space platforms shape")
def empty(site: Site, *_: Value) -> list[Value]:
    return [Value(COMMON) for _ in site.eqn.outvars]
