"""Lanes and pools of a violation, by number and path, and owners in words."""

from collections.abc import Iterable, Sequence
from typing import Any

from ir_passes.contract.contract import BoundContract
from ir_passes.contract.entries import ONE_LAYOUT
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows, Symbol, mesh_axes


def concerned(bound: BoundContract, parts: Iterable[tuple[Owner, Sequence[int]]]) -> tuple[str, ...]:
    """Return the lanes ("lanes 0 to 3") and pools of some arrays."""
    numbers: dict[tuple[str | Symbol, ...], set[int]] = {}
    picked: dict[str, None] = {}
    pools: dict[str, None] = {}
    for owner, shape in parts:
        match owner:
            case Common():
                continue
            case LaneRows() | OneLane() if owner.packed:
                picked["packed tokens"] = None
            case LaneRows(axis, inner, start, _, split):
                numbers.setdefault(split, set()).update(range(start, start + -(-shape[axis] // inner)))
            case OneLane(int(lane), split):
                numbers.setdefault(split, set()).add(lane)
            case OneLane(_, split):
                picked["the lane of a loop index" + _devices(split)] = None
            case PoolRows(leaf):
                pools[bound.inputs[leaf].path] = None
            case Mixed(cause):
                picked.update(dict.fromkeys(cause.concerned))
    lanes = [_lanes(sorted(group)) + _devices(split) for split, group in numbers.items() if group]
    return tuple(dict.fromkeys([*lanes, *picked, *pools]))


def operands_in_words(
    bound: BoundContract, owners: Iterable[Owner], shapes: Iterable[Sequence[int]]
) -> tuple[str, ...]:
    """Return the lanes and pools of operands, or all lanes."""
    return concerned(bound, zip(owners, shapes, strict=True)) or concerned(bound, [(LaneRows(0), (bound.lanes,))])


def pool_path(prover: Any, value: Any) -> str:
    """Return the path of a version's pool."""
    leaf = prover.versions.leaf_of.get(value.version)
    return "a pool" if leaf is None else prover.bound.inputs[leaf].path


def _lanes(numbers: list[int]) -> str:
    """Format sorted numbers, as "lane 2" or "lanes 0, 2 and 5 to 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    *parts, final = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    listed = f"{', '.join(parts)} and {final}" if parts else final
    return f"{'lane' if len(numbers) == 1 else 'lanes'} {listed}"


def _devices(split: tuple[str | Symbol, ...]) -> str:
    axes = mesh_axes(split)
    tiles = " of each tile of a loop" if len(axes) < len(split) else ""
    return tiles + (f" of each device along {', '.join(axes)}" if axes else "")


def describe(owner: Owner) -> str:
    match owner:
        case Common():
            return "shared"
        case OneLane(lane):
            noun = _noun(owner.packed)
            return f"{noun} {lane}" if isinstance(lane, int) else f"the {noun} of a loop index"
        case LaneRows(axis, inner, start, order):
            noun = _noun(owner.packed)
            rows = f"{noun}s" if inner == 1 else f"{noun}s x {inner}"
            origin = f" from {noun} {start}" if start else ""
            suffix = "" if order is None else ", permuted"
            return f"{rows} along axis {axis}{origin}{suffix}"
        case PoolRows(_, group, axis):
            return f"pool {group!r}, rows along axis {axis}"
        case Mixed(cause):
            return f"several lanes ({cause.primitive} at {cause.source})"


def value_text(value: Any) -> str:
    """Return an abstract value in words."""
    parts = [describe(value.owner)]
    if value.range is not None:
        parts.append(f"in [{value.range[0]}, {value.range[1]}]")
    if value.fact is not None:
        parts.append("index columns" if hasattr(value.fact, "values") else str(value.fact))
    return ", ".join(parts)


def _noun(layout: str) -> str:
    return "lane" if not layout else "token" if layout == ONE_LAYOUT else f"{layout!r} token"
