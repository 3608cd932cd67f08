"""Operations that move elements without computing with them."""

import math
from dataclasses import replace

from ir_passes.proof.intervals import hull
from ir_passes.proof.numbering import NONE
from ir_passes.proof.owners import COMMON, LaneRows, Mixed, OneLane, Owner, PoolRows, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing.packed_tokens import relocated
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    ActiveCount,
    ActiveLane,
    BroadcastVector,
    Constant,
    Counts,
    DeviceOffset,
    Fact,
    Implies,
    Iota,
    PageEntry,
    Permuted,
    RemainderOf,
    SignOf,
    SlotEntry,
    Tiles,
    UnchangedRows,
    Value,
)
from ir_passes.proof.views import entered, reshaped, transposed

Shape = tuple[int, ...]


def over(owner: Owner, shape: Shape, result: Shape) -> Owner:
    """Return the owner of an operand that is broadcast to the shape of the result."""
    axis = axis_of(owner)
    return owner if axis is None else stretched(owner, shape[axis], result[axis])


def stretched(owner: Owner, before: int, after: int) -> Owner:
    """Return the owner after the single index of its axis has been broadcast."""
    if isinstance(owner, LaneRows) and before == 1 != after:
        return OneLane(owner.start, owner.split, owner.unreduced, owner.packed)
    return owner


def place_after_reshape(axis: int, before: Shape, after: Shape) -> tuple[int, int, int] | None:
    """Locate an axis after a row-major reshape: (new axis, elements of the new axis per old index, and the reverse).

    One of the two counts is 1. None where the axis does not survive as a prefix of a new axis or the other way round,
    and for an array without elements.
    """
    if not math.prod(after):
        return None
    ahead = math.prod(before[:axis])
    stride = math.prod(before[axis + 1 :])
    lead = 1
    for new, size in enumerate(after):
        if lead == ahead and (size > 1 or before[axis] == 1):
            new_stride = math.prod(after[new + 1 :])
            if stride % new_stride == 0 and size * new_stride == before[axis] * stride:
                return new, stride // new_stride, 1
            if new_stride % stride == 0 and size * new_stride == before[axis] * stride:
                return new, 1, new_stride // stride
            return None
        lead *= size
    return None


def reshape_owner(site: Site, owner: Owner, before: Shape, after: Shape) -> Owner:
    """Return the owner after a reshape."""
    axis = axis_of(owner)
    if axis is None:
        return owner
    found = place_after_reshape(axis, before, after)
    if found is not None:
        new, per_old, per_new = found
        if per_old == per_new == 1:
            return moved(owner, new)
        if isinstance(owner, PoolRows):
            # several rows at one index are refused: of an axis that they are split off, some could be cut out
            if owner.inner * per_old % per_new == 0:
                return replace(owner, axis=new, inner=owner.inner * per_old // per_new)
        if isinstance(owner, LaneRows) and owner.order is None:
            if per_new == 1:
                return replace(owner, axis=new, inner=owner.inner * per_old)
            if owner.inner % per_new == 0:
                return replace(owner, axis=new, inner=owner.inner // per_new)
    return site.mixed(
        f"reshaping {before} to {after} does not keep axis {axis}, which holds different lanes, as an axis",
        "use the pool as it lies, or merge dimensions of a row into the row axis: index by row * size + offset"
        if isinstance(owner, PoolRows)
        else "keep lanes on an axis of their own, or let them be the leading part of a merged axis",
    )


def _tiles(owner: Owner, before: Shape, after: Shape) -> Tiles | None:
    """Return the fact about rows of lanes or tokens after a reshape of their axis to two axes."""
    if not isinstance(owner, LaneRows) or owner.inner != 1 or owner.order is not None or owner.unreduced or owner.split:
        return None
    first = _merged(owner.axis, after, before)
    return None if first is None else Tiles(replace(owner, axis=0), first, after[first + 1])


def _of_tiles(fact: Fact | None, before: Shape, after: Shape) -> Owner | None:
    """Return the owner after a reshape of the axes of tiles and their rows to one axis."""
    if not isinstance(fact, Tiles):
        return None
    return next(
        (moved(fact.rows, axis) for axis in range(len(after)) if _merged(axis, before, after) == fact.tiles), None
    )


def _merged(axis: int, two: Shape, one: Shape) -> int | None:
    """Return the first of two adjacent axes of a shape if another shape has one axis for both, at `axis`."""
    if len(two) != len(one) + 1 or not math.prod(one):
        return None
    parts = one[:axis], one[axis + 1 :]
    same = (two[:axis], two[axis + 2 :]) == parts and two[axis] * two[axis + 1] == one[axis]
    return axis if same else None


def _reshape_kept(intact: UnchangedRows | None, before: Shape, after: Shape) -> UnchangedRows | None:
    return None if intact is None else UnchangedRows(intact.leaf, reshaped(intact.view, before, after))


def _reshaped(site: Site, x: Value) -> Value:
    before, after = site.shapes[0], site.shape
    owner = reshape_owner(site, x.owner, before, after)
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=reshaped(owner.view, before, after))
    fact = (
        x.fact
        if isinstance(x.fact, SlotEntry | PageEntry | DeviceOffset | ActiveCount | ActiveLane | Constant)
        else None
    )
    if isinstance(x.fact, Iota):
        found = place_after_reshape(x.fact.axis, before, after)
        fact = Iota(found[0], x.fact.div * found[1]) if found is not None and found[2] == 1 else None
    elif fact is None and x.fact is not None and _same_but_ones(before, after):
        fact = _fact_over_ones(x.fact, before, after)
    if fact is None:
        fact = relocated(x.fact, lambda axis: _same_place(axis, before, after))
    if isinstance(owner, Mixed):
        fact = fact or _tiles(x.owner, before, after)
        owner = _of_tiles(x.fact, before, after) or owner
    return Value(owner, x.number, x.range, fact, _reshape_kept(x.intact, before, after), x.version)


def _same_place(axis: int, before: Shape, after: Shape) -> int | None:
    """Return the axis that an axis is after a reshape, with the same elements; None where there is none."""
    found = place_after_reshape(axis, before, after)
    return found[0] if found is not None and found[1:] == (1, 1) else None


def _same_but_ones(before: Shape, after: Shape) -> bool:
    return [size for size in before if size != 1] == [size for size in after if size != 1]


def _fact_over_ones(fact: Fact, before: Shape, after: Shape) -> Fact | None:
    if isinstance(fact, Permuted | Counts):
        return fact if before[:1] == after[:1] else None
    return fact if isinstance(fact, SignOf | RemainderOf | Implies) else None


@rule("reshape", reads="new_sizes", ignores="sharding", accepts={"dimensions": (None,)})
def reshape(site: Site, x: Value) -> list[Value]:
    """Reshape row-major: the normal form of a program has no reshape with `dimensions`."""
    return [_reshaped(site, x)]


@rule("squeeze", reads="dimensions")
def squeeze(site: Site, x: Value) -> list[Value]:
    """Drop axes of size 1."""
    return [_reshaped(site, x)]


@rule("broadcast_in_dim", reads="shape broadcast_dimensions", ignores="sharding")
def broadcast(site: Site, x: Value, *_: Value) -> list[Value]:
    """Repeat elements along new or size-1 dimensions."""
    before, after = site.shapes[0], site.shape
    if math.prod(before) == math.prod(after):
        return [_reshaped(site, x)]
    dims = tuple(map(int, site.params["broadcast_dimensions"]))
    axis = axis_of(x.owner)
    owner = x.owner if axis is None else stretched(moved(x.owner, dims[axis]), before[axis], after[dims[axis]])
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=entered(owner.view, ("broadcast",)))
    fact = x.fact if isinstance(x.fact, SlotEntry | PageEntry | DeviceOffset | ActiveCount | Constant) else None
    if isinstance(x.fact, Iota) and before[x.fact.axis] == after[dims[x.fact.axis]]:
        fact = Iota(dims[x.fact.axis], x.fact.div)
    long = [axis for axis, size in enumerate(before) if size != 1]
    if fact is None:
        fact = relocated(x.fact, lambda axis: dims[axis] if before[axis] == after[dims[axis]] else None)
    if fact is None and len(long) == 1:
        fact = BroadcastVector(x.number, dims[long[0]])
    return [Value(owner, NONE, x.range, fact, None, x.version)]


@rule("transpose", reads="permutation")
def transpose(site: Site, x: Value) -> list[Value]:
    """Permute the axes."""
    permutation = tuple(map(int, site.params["permutation"]))
    axis = axis_of(x.owner)
    owner = x.owner if axis is None else moved(x.owner, permutation.index(axis))
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=transposed(owner.view, permutation))
    intact = None if x.intact is None else UnchangedRows(x.intact.leaf, transposed(x.intact.view, permutation))
    fact = x.fact if isinstance(x.fact, SlotEntry | PageEntry | Constant) else None
    if isinstance(x.fact, Iota):
        fact = Iota(permutation.index(x.fact.axis), x.fact.div)
    fact = fact or relocated(x.fact, permutation.index)
    return [Value(owner, NONE, x.range, fact, intact, x.version)]


@rule("rev", reads="dimensions")
def reverse(site: Site, x: Value) -> list[Value]:
    """Reverse axes, within a lane."""
    owner, axis = x.owner, axis_of(x.owner)
    if axis is not None and axis in site.params["dimensions"]:
        owner = site.mixed("it reverses the axis that holds lanes", "reverse another axis")
    elif isinstance(owner, PoolRows):
        view = entered(owner.view, ("rev", site.params["dimensions"]))
        owner = replace(owner, view=view)
    return [Value(owner, range=x.range)]


@rule("pad", reads="padding_config")
def pad(site: Site, x: Value, filler: Value) -> list[Value]:
    """Pad the ends of axes."""
    if not any(map(any, site.params["padding_config"])):
        return [x]
    owner, axis = x.owner, axis_of(x.owner)
    if axis is not None:
        low, high, inside = map(int, site.params["padding_config"][axis])
        if low or high or inside:
            whole = isinstance(owner, LaneRows) and owner.order is None and inside == 0 and low % owner.inner == 0
            if whole and low >= 0 and high >= 0:
                assert isinstance(owner, LaneRows)
                owner = replace(owner, start=owner.start - low // owner.inner, unreduced=())
            else:
                owner = site.mixed("it pads the axis that holds lanes", "pad another axis")
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=entered(owner.view, ("pad",)))
    return [Value(site.join(owner, filler.owner), range=hull(x.range, filler.range))]


@rule("tile", reads="reps repeats")
def tile(site: Site, x: Value) -> list[Value]:
    """Repeat along axes."""
    repeats = tuple(site.params.get("reps") or site.params["repeats"])
    axis = axis_of(x.owner)
    owner = x.owner
    if axis is not None and repeats[axis] != 1:
        owner = site.mixed("it repeats the axis that holds lanes", "repeat another axis")
    return [Value(owner, range=x.range)]


@rule("iota", reads="dtype shape dimension", ignores="sharding")
def iota(site: Site, *_: Value) -> list[Value]:
    """Count up along an axis."""
    axis = int(site.params["dimension"])
    number = site.prover.index_number(site.params["dtype"], site.shape, axis)
    return [Value(COMMON, number, (0, max(0, site.shape[axis] - 1)), Iota(axis))]


@rule("empty", "empty2", "create_token", ignores="dtype memory_space out_sharding shape")
def empty(site: Site, *_: Value) -> list[Value]:
    """Make an uninitialised array or a token, which is shared."""
    return [Value(COMMON) for _ in site.eqn.outvars]
