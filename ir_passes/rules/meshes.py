"""Programs over a mesh of devices: shard_map and collectives."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from ir_passes import ir
from ir_passes.rules.registry import rule
from ir_passes.site import Site
from ir_passes.values import COMMON, Common, Iota, Kept, OneLane, Owner, PoolRows, Rows, Slot, Symbol, Value, axis_of
from ir_passes.views import entered, left
from ir_passes.violations import ViolationKind

_REDUCTIONS = ("psum", "psum_invariant", "pmax", "pmin", "pbroadcast", "reduce_scatter")
_MOVES = ("all_gather", "all_gather_invariant", "all_to_all", "ragged_all_to_all", "ppermute", "psend", "precv")


def _axes(params: dict[str, Any]) -> tuple[str, ...]:
    names = params.get("axes", params.get("axis_name", ()))
    return tuple(names) if isinstance(names, tuple | list) else (names,)


@rule(*_REDUCTIONS, *_MOVES)
def collective(site: Site, *operands: Value) -> list[Value]:
    """An exchange between devices; over mesh axes that split lanes it mixes them."""
    axes = _axes(site.params)
    results = []
    for value, shape in zip(operands, site.shapes, strict=True):
        split = value.owner.split if isinstance(value.owner, Rows | OneLane) else ()
        if isinstance(value.owner, OneLane) and isinstance(value.owner.lane, Symbol):
            split = (*split, *site.prover.telling)
        crossing = sorted(set(split) & set(map(str, axes)))
        if crossing:
            message = f"it exchanges values over mesh axis {', '.join(crossing)}, over which lanes are split"
            remedy = "exchange over axes that split heads or experts only"
            results.append(Value(site.mixed(message, remedy, ViolationKind.COLLECTIVE)))
        elif site.name in _MOVES[:4] or "scatter" in site.name:
            results.append(Value(_along(site, value.owner, shape)))
        else:
            results.append(Value(value.owner))
    return results


def _along(site: Site, owner: Owner, shape: tuple[int, ...]) -> Owner:
    """A collective that changes the length of an axis; not that of the lanes."""
    dims = ("all_gather_dimension", "split_axis", "concat_axis", "scatter_dimension")
    changed = {int(site.params[name]) for name in dims if name in site.params}
    axis = axis_of(owner)
    if axis is None:
        return owner
    if axis in changed or len(site.shape) != len(shape):
        remedy = "let it change another axis"
        return site.mixed("it changes the axis that holds lanes", remedy, ViolationKind.COLLECTIVE)
    return owner


@rule("axis_index")
def axis_index(site: Site, *_: Value) -> list[Value]:
    """The device's place in the mesh: the same for all its lanes, but devices may pick different lanes by it."""
    site.prover.telling.update(map(str, _axes(site.params)))
    return [Value(COMMON)]


@rule("shard_map")
def shard_map(site: Site, *operands: Value) -> list[Value]:
    """The program of one device; lanes that are split over devices count within one."""
    body, devices = ir.closed(site.params["jaxpr"]), dict(site.params["mesh"].shape)
    mark = site.prover.fresh()
    inputs = [
        _sharded(site, value, shape, Split.of(spec, devices))
        for value, shape, spec in zip(operands, site.shapes, site.params["in_specs"], strict=True)
    ]
    results = site.prover.run(body.jaxpr, [site.prover.constant(c) for c in body.consts], inputs)
    return [
        _put_together(site, value, Split.of(spec, devices), mark)
        for value, spec in zip(results, site.params["out_specs"], strict=True)
    ]


@dataclass(frozen=True)
class Split:
    """How an array is split over the devices of a mesh.

    Attributes:
        axes: axis of the array -> the axes of the mesh that split it.
        devices: length of each axis of the mesh.
    """

    axes: dict[int, tuple[str, ...]]
    devices: dict[str, int]

    @classmethod
    def of(cls, spec: Any, devices: dict[str, int]) -> "Split":
        """Of a partition specification."""
        named = {axis: (names,) if isinstance(names, str) else names for axis, names in enumerate(spec) if names}
        return cls({axis: tuple(map(str, names)) for axis, names in named.items()}, devices)

    def parts(self, axis: int) -> int:
        """Into how many parts an axis is split."""
        return math.prod(self.devices[name] for name in self.axes[axis])

    @property
    def step(self) -> tuple[Hashable, ...]:
        """Taking a device's part, as a step of a view."""
        return "device", tuple(sorted(self.axes.items())), tuple(sorted(self.devices.items()))


def _sharded(site: Site, value: Value, shape: tuple[int, ...], split: Split) -> Value:
    """A device's part of an operand. Its number is new: parts of equal arrays need not be equal."""
    owner, axis, kept = value.owner, axis_of(value.owner), value.kept
    if axis is not None and axis in split.axes:
        if isinstance(owner, PoolRows):
            remedy = "split lanes with a row pool, or keep the pool whole on every device"
            return Value(site.mixed("rows of a pool with a slot map are split over devices", remedy))
        if isinstance(owner, Rows):
            whole = shape[axis] // split.parts(axis) % owner.inner == 0
            if owner.order is not None or owner.start or owner.split or not whole:
                return Value(site.mixed("lanes are split over devices out of order", "split them in order"))
            owner = Rows(axis, owner.inner, 0, None, split.axes[axis])
    if isinstance(owner, Common):
        site.prover.telling.update(name for names in split.axes.values() for name in names)
    if split.axes:
        kept = None if kept is None else Kept(kept.leaf, entered(kept.view, split.step))
        owner = replace(owner, view=entered(owner.view, split.step)) if isinstance(owner, PoolRows) else owner
    fact = value.fact if isinstance(value.fact, Slot) or (isinstance(value.fact, Iota) and not split.axes) else None
    return Value(owner, site.prover.fresh(), value.range, fact, kept, value.version)


def _put_together(site: Site, value: Value, split: Split, mark: int) -> Value:
    """A result from the parts of all devices.

    Args:
        mark: numbers from here on are of values inside.
    """
    owner, kept = _gathered(site, value.owner, split.axes, mark), value.kept
    if split.axes:
        if kept is not None:
            back = left(kept.view, split.step)
            kept = None if back is None else Kept(kept.leaf, back)
        if isinstance(owner, PoolRows):
            back = left(owner.view, split.step)
            owner = site.unframed(owner) if back is None else replace(owner, view=back)
    return Value(owner, kept=kept, version=value.version)


def _gathered(site: Site, owner: Owner, split: dict[int, tuple[str, ...]], mark: int) -> Owner:
    over = ", ".join(getattr(owner, "split", ())) or "devices"
    message = f"a result that differs between lanes, which are split over {over}, is not put together so"
    remedy = "give it the out_spec of its lanes"
    if isinstance(owner, Rows):
        inside = owner.order is not None and owner.order.number >= mark
        if not inside and split.get(owner.axis, ()) == owner.split and not (owner.split and owner.start):
            return replace(owner, split=())
        return site.mixed(message, remedy, ViolationKind.COLLECTIVE)
    if isinstance(owner, OneLane):
        picked = isinstance(owner.lane, Symbol) and owner.lane.number >= mark
        return site.mixed(message, remedy, ViolationKind.COLLECTIVE) if owner.split or picked else owner
    if isinstance(owner, PoolRows) and owner.axis in split:
        return site.mixed("copies of a pool are put one after the other", remedy, ViolationKind.COLLECTIVE)
    return owner
