"""Programs over a mesh of devices: operands and results of a shard_map."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from ir_passes.jaxpr import ir, mesh
from ir_passes.proof import refusals
from ir_passes.proof.assumed import assume_replicated
from ir_passes.proof.owners import COMMON, Common, LaneRows, OneLane, Owner, PoolRows, Symbol, axis_of
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing import token_layout
from ir_passes.proof.site import Site, interpret
from ir_passes.proof.values import DeviceOffset, Iota, PageEntry, SlotEntry, Value
from ir_passes.proof.views import left

Split = dict[int, tuple[str, ...]]
"""Axis of an array -> mesh axes that split it over devices."""


@rule("axis_index", reads="axis_name")
def axis_index(site: Site, *_: Value) -> list[Value]:
    """Return a device's index in the mesh.

    The lanes of a device share it, but devices may select different lanes by it.
    """
    axes = mesh.axes_of(site.eqn)
    site.prover.device_varying.update(axes)
    # one number per walk over a shard_map: devices and meshes have different indices
    number = site.prover.number(("axis_index", axes), site.prover.program)
    bounds = 0, site.prover.devices_along(axes) - 1
    return [Value(COMMON, number, bounds, DeviceOffset(*axes) if len(axes) == 1 else None)]


@rule("shard_map", reads="check_vma in_specs jaxpr mesh newly_manual_axes out_specs")
def shard_map(site: Site, *operands: Value) -> list[Value]:
    """Interpret the program of one device; lanes are counted within it."""
    body, manual = ir.closed(site.params["jaxpr"]), site.params["newly_manual_axes"]
    # automatic axes split nothing: a device has the full arrays
    devices = {axis: size for axis, size in mesh.devices_of(site.params["mesh"]).items() if axis in manual}
    mark = site.prover.fresh()
    splits, new_splits = (
        [_split_of(spec, devices) for spec in site.params[name]] for name in ("in_specs", "out_specs")
    )
    assume_replicated(site, splits, devices)
    invariance = site.prover.invariance and bool(site.params["check_vma"])
    with site.prover.given(devices=site.prover.devices | devices, invariance=invariance, program=mark):
        parts = zip(operands, site.shapes, splits, strict=True)
        results = interpret(site.prover, body, [_device_part(site, *part) for part in parts])
        joined = zip(results, ir.shapes(site.eqn.outvars), new_splits, strict=True)
        return [_joined_parts(site, *part, mark) for part in joined]


def _split_of(spec: Any, devices: dict[str, int]) -> Split:
    named = {axis: (names,) if isinstance(names, str) else names for axis, names in enumerate(spec) if names}
    split = {axis: tuple(str(name) for name in names if devices[name] > 1) for axis, names in named.items()}
    return {axis: names for axis, names in split.items() if names}


def _step(site: Site, split: Split) -> tuple[Hashable, ...]:
    return "device", tuple(sorted(split.items())), tuple(sorted(site.prover.devices.items()))


def _device_part(site: Site, value: Value, shape: tuple[int, ...], split: Split) -> Value:
    """Return a device's part, with a new value number: parts may differ."""
    owner, axis, intact = value.owner, axis_of(value.owner), value.intact
    if axis is not None and axis in split:
        if isinstance(owner, PoolRows):
            if owner.inner != 1:
                return Value(site.mixed(*refusals.MERGED_POOL_SPLIT))
            if owner.split:
                return Value(site.mixed(*refusals.SPLIT_TWICE))
            owner = replace(owner, split=split[axis])
        if isinstance(owner, LaneRows):
            lanes_per_device, rest = divmod(site.prover.bound.lanes, site.prover.devices_along(split[axis]))
            is_whole = rest == 0 and shape[axis] == site.prover.bound.lanes * owner.inner
            if owner.packed:
                return Value(site.mixed(*refusals.SPLIT_TOKENS(along=", ".join(split[axis]))))
            if owner.order is not None or owner.start or owner.split or owner.unreduced or not is_whole:
                return Value(site.mixed(*refusals.SPLIT_OUT_OF_ORDER))
            names = split[axis]
            owner = OneLane(0, names) if lanes_per_device == 1 else LaneRows(axis, owner.inner, 0, None, names)
    if isinstance(owner, Common):
        site.prover.device_varying.update(name for names in split.values() for name in names)
    if split:
        intact = intact and intact.seen(lambda view: (*view, _step(site, split)))
        owner = replace(owner, view=(*owner.view, _step(site, split))) if isinstance(owner, PoolRows) else owner
    is_whole = isinstance(value.fact, (Iota, *token_layout.LAYOUT_FACTS)) and not split
    fact = value.fact if isinstance(value.fact, SlotEntry | PageEntry) or is_whole else None
    if isinstance(fact, SlotEntry) and fact.offset is not None:
        fact = None  # row numbers local to devices of another mesh
    number = site.prover.fresh() if split else value.number
    return Value(owner, number, value.range, fact, intact, value.version)


def _joined_parts(site: Site, value: Value, shape: tuple[int, ...], split: Split, mark: int) -> Value:
    """Put devices' parts together; value numbers from `mark` on are inside the shard_map."""
    owner, intact = _owner_of_result(site, value.owner, shape, split, mark), value.intact
    if split:
        intact = intact and intact.seen(lambda view: left(view, _step(site, split)))
        if isinstance(owner, PoolRows):
            full_view = left(owner.view, _step(site, split))
            owner = replace(site.unframed(owner) if full_view is None else replace(owner, view=full_view), split=())
    return Value(owner, range=value.range, intact=intact, version=value.version)


def _owner_of_result(site: Site, owner: Owner, shape: tuple[int, ...], split: Split, mark: int) -> Owner:
    over = ", ".join(getattr(owner, "split", ())) or "devices"
    if isinstance(owner, LaneRows | OneLane) and owner.unreduced:
        return site.mixed(*refusals.LEAVES_BEFORE_SUM(axes=", ".join(owner.unreduced)))
    if isinstance(owner, LaneRows):
        has_inner_order = owner.order is not None and owner.order.number >= mark
        all_lanes = not owner.start and shape[owner.axis] == site.prover.bound.lanes * owner.inner
        if not has_inner_order and split.get(owner.axis, ()) == owner.split and (all_lanes or not owner.split):
            return replace(owner, split=())
        return site.mixed(*refusals.NOT_PUT_TOGETHER(over=over))
    if isinstance(owner, OneLane):
        picked = isinstance(owner.lane, Symbol) and owner.lane.number >= mark
        along = [axis for axis, names in split.items() if names == owner.split]
        lanes = site.prover.bound.lanes
        if along and owner.lane == 0 and site.prover.devices_along(split[along[0]]) == lanes:
            return LaneRows(along[0], shape[along[0]] // lanes)
        return site.mixed(*refusals.NOT_PUT_TOGETHER(over=over)) if owner.split or picked else owner
    if isinstance(owner, PoolRows) and split.get(owner.axis, ()) != owner.split:
        return site.mixed(*refusals.pool_not_put_together(owner.split))
    return owner
