"""Static parts of arrays, and arrays put together from parts."""

from collections.abc import Sequence
from dataclasses import replace

from ir_passes.proof import refusals
from ir_passes.proof.concerned import describe
from ir_passes.proof.intervals import hull
from ir_passes.proof.numbering import NONE
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.site import Site
from ir_passes.proof.values import Columns, Constant, PageEntry, SlotEntry, Value
from ir_passes.proof.views import View, block


def part(site: Site, owner: Owner, axis: int, start: int, size: int, full: int, step: int = 1) -> Owner:
    if start == 0 and size == full and step == 1:
        return owner
    if isinstance(owner, LaneRows) and owner.order is None:
        first, last = start // owner.inner, (start + (size - 1) * step) // owner.inner
        if first == last:
            return OneLane(owner.start + first, owner.split, packed=owner.packed)
        if step == 1 and start % owner.inner == 0:
            return replace(owner, axis=axis, start=owner.start + first, unreduced=())
    return site.mixed(*refusals.CUT_LANES(axis=axis, owner=describe(owner)))


def _static_slice(site: Site, x: Value, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Value:
    full = site.shapes[0]
    axis, owner, intact = axis_of(x.owner), x.owner, x.intact
    is_whole = tuple(sizes) == full and not any(starts)
    if axis is not None:
        owner = part(site, x.owner, axis, starts[axis], sizes[axis], full[axis], steps[axis])
    if isinstance(owner, PoolRows) and not is_whole:
        owner = replace(owner, view=_view_of_slice(owner.view, owner.axis, full, starts, sizes, steps))
    if intact is not None and not is_whole:
        rows = owner.axis if isinstance(owner, PoolRows) else -1
        intact = intact.seen(lambda view: _view_of_slice(view, rows, full, starts, sizes, steps))
    fact = x.fact if isinstance(x.fact, SlotEntry | PageEntry | Constant) else None
    number, version = (x.number, x.version) if is_whole else (NONE, site.prover.versions.part_of(x.version))
    return Value(owner, number, x.range, fact, intact, version)


def _view_of_slice(
    view: View, rows: int, full: Sequence[int], starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]
) -> View:
    """Return the view; a slice without strides equals a read at constants."""
    if any(step != 1 for step in steps):
        return (*view, ("slice", tuple(full), tuple(map(int, (*starts, *sizes, *steps)))))
    begins = ((d, int(start)) for d, start in enumerate(starts) if sizes[d] != full[d])
    return block(view, rows, tuple(map(int, full)), tuple(map(int, sizes)), begins)


@rule("slice", reads="start_indices limit_indices strides")
def cut(site: Site, x: Value) -> list[Value]:
    starts, limits = site.params["start_indices"], site.params["limit_indices"]
    steps = site.params["strides"] or (1,) * len(starts)
    if isinstance(x.fact, Columns) and limits[-1] - starts[-1] == 1:
        rest = not any(starts[:-1]) and tuple(limits[:-1]) == site.shapes[0][:-1]
        column = x.fact.values[starts[-1]]
        if rest and len(x.fact.values) == site.shapes[0][-1] and not isinstance(column.owner, PoolRows):
            return [column.replace(intact=None)]  # a column does not show if it had this axis when it was stored
    return [_static_slice(site, x, starts, site.shape, steps)]


@rule("split", reads="sizes axis")
def split(site: Site, x: Value) -> list[Value]:
    return _cut_along(site, x, site.params["axis"], list(map(int, site.params["sizes"])))


def _cut_along(site: Site, x: Value, axis: int, sizes: list[int]) -> list[Value]:
    full, results, start = site.shapes[0], [], 0
    for size in sizes:
        starts = [start if d == axis else 0 for d in range(len(full))]
        results.append(_static_slice(site, x, starts, [*full[:axis], size, *full[axis + 1 :]], (1,) * len(full)))
        start += size
    return results


@rule("unstack", reads="axis")
def unstack(site: Site, x: Value) -> list[Value]:
    axis, results = int(site.params["axis"]), []
    for value in _cut_along(site, x, axis, [1] * site.shapes[0][axis]):
        owner, fact = value.owner, value.fact if isinstance(value.fact, SlotEntry | PageEntry) else None
        if isinstance(owner, LaneRows) and owner.axis == axis:
            owner = OneLane(owner.start, owner.split, packed=owner.packed)
        results.append(Value(moved(owner, lambda old: old - (old > axis)), range=value.range, fact=fact))
    return results


@rule("concatenate", reads="dimension")
def concatenate(site: Site, *parts: Value) -> list[Value]:
    """Concatenate; lanes along the axis must stay in order."""
    axis = site.params["dimension"]
    sizes = [shape[axis] for shape in site.shapes]
    bounds = hull(*(value.range for value in parts))
    owner = joined_along(site, axis, [p.owner for p in parts], sizes)
    fact = _entries_in_order(site, owner, parts)
    if fact is None and axis == len(site.shape) - 1 and all(size == 1 for size in sizes):
        fact = Columns(parts)
    return [Value(owner, NONE, bounds, fact)]


def _entries_in_order(site: Site, owner: Owner, parts: Sequence[Value]) -> SlotEntry | None:
    fact = parts[0].fact
    in_order = isinstance(owner, LaneRows) and len(site.shape) == 1
    return fact if in_order and isinstance(fact, SlotEntry) and all(part.fact == fact for part in parts) else None


@rule("stack", reads="axis")
def stack(site: Site, *parts: Value) -> list[Value]:
    axis = int(site.params["axis"])
    owners = [moved(value.owner, lambda old: old + (old >= axis)) for value in parts]
    bounds = hull(*(value.range for value in parts))
    owner = joined_along(site, axis, owners, [1] * len(parts))
    fact = _entries_in_order(site, owner, parts) or (Columns(parts) if axis == len(site.shape) - 1 else None)
    return [Value(owner, NONE, bounds, fact)]


def joined_along(site: Site, axis: int, owners: list[Owner], sizes: list[int]) -> Owner:
    along = [owner for owner in owners if axis_of(owner) == axis and not isinstance(owner, Mixed)]
    lanes = {owner for owner in owners if isinstance(owner, OneLane)}
    if not along and len(lanes) < 2:
        return site.join(*owners)
    consecutive = _consecutive_lanes(axis, owners, sizes)
    if consecutive is not None:
        return consecutive
    mixed = next((owner for owner in owners if isinstance(owner, Mixed)), None)
    return mixed or site.mixed(*refusals.PARTS_OUT_OF_ORDER(axis=axis))


def _consecutive_lanes(axis: int, owners: list[Owner], sizes: list[int]) -> LaneRows | None:
    """Return the owner of consecutive lanes; shared parts may replace lanes."""
    pieces = [(owner, size) for owner, size in zip(owners, sizes, strict=True) if size]
    inner = {owner.inner for owner, _ in pieces if isinstance(owner, LaneRows)}
    inner |= {size for owner, size in pieces if isinstance(owner, OneLane) and isinstance(owner.lane, int)}
    splits = {(owner.split, owner.packed) for owner, _ in pieces if isinstance(owner, LaneRows | OneLane)}
    if len(inner) != 1 or len(splits) != 1:
        return None
    (per_lane,) = inner
    place, start = 0, None
    for owner, size in pieces:
        place += size
        if isinstance(owner, Common):
            continue
        if isinstance(owner, OneLane) and isinstance(owner.lane, int):
            lane = owner.lane
        elif isinstance(owner, LaneRows) and owner.axis == axis and owner.order is None:
            lane = owner.start
        else:
            return None
        previous_lanes, rest = divmod(place - size, per_lane)
        if rest or start not in (None, lane - previous_lanes):
            return None
        start = lane - previous_lanes
    ((split, packed),) = splits
    return LaneRows(axis, per_lane, start or 0, None, split, packed=packed)
