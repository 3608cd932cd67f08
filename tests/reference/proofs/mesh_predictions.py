"""Check the proof's claims about every variable in a `shard_map`, per device."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from idle_predictions import Views, idle_lanes
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxpr_mutation import Subject
from predicted_owners import Reality, differing, predictions

from ir_passes.jaxpr import ir
from ir_passes.proof.owners import Common, LaneRows, OneLane, Order, PoolRows, Symbol, mesh_axes
from ir_passes.proof.values import DeviceOffset, SlotEntry, Value


def inside(eqn: ir.JaxprEqn) -> tuple[list[Any], Callable[..., list[Any]]]:
    """Variables of a `shard_map` body, and their values on every device.

    Results have a leading axis of devices.
    """
    over: Mesh = eqn.params["mesh"]
    body = ir.closed(eqn.params["jaxpr"])
    variables = [var for eqn in body.jaxpr.eqns for var in eqn.outvars if not isinstance(var, ir.DropVar)]
    names = body.jaxpr.debug_info.with_unknown_names()
    program = ir.ClosedJaxpr(body.jaxpr.replace(outvars=variables, debug_info=names), body.consts)

    checked = eqn.params["check_vma"]

    def differing(value: Any) -> Any:
        missing = tuple(name for name in over.axis_names if name not in jax.typeof(value).manual_axis_type.varying)
        return lax.pcast(value, missing, to="varying") if checked and missing else value

    local = lambda *operands: [differing(value)[None] for value in ir.as_function(program)(*operands)]
    return variables, jax.jit(
        jax.shard_map(
            local, mesh=over, in_specs=eqn.params["in_specs"], out_specs=P(over.axis_names), check_vma=checked
        )  # fmt: skip
    )


class Device:
    """A mesh device and its lanes.

    Args:
        over: the mesh.
        number: of the device, in row-major order of the mesh.
        lanes: of the step.
    """

    def __init__(self, over: Mesh, number: int, lanes: int):
        sizes = tuple(over.shape.values())
        self.at = dict(zip(over.axis_names, map(int, np.unravel_index(number, sizes)), strict=True))
        self.sizes, self.lanes = dict(over.shape), lanes

    def part(self, names: tuple[str, ...]) -> tuple[int, int]:
        """Index and number of a device's part along some mesh axes."""
        index, count = 0, 1
        for name in names:
            index, count = index * self.sizes[name] + self.at[name], count * self.sizes[name]
        return index, count

    def first(self, split: tuple[str, ...]) -> int:
        """The lane that counts as its lane 0."""
        index, count = self.part(split)
        return index * (self.lanes // count)

    def cut(self, array: np.ndarray, axes: tuple[tuple[int, tuple[str, ...]], ...]) -> np.ndarray:
        """Its part of an array, [run, ...]."""
        for axis, names in axes:
            index, count = self.part(names)
            array = np.split(array, count, axis + 1)[index]
        return array


def mesh_faults(subject: Subject, checked: dict[str, int] | None = None) -> Iterator[str]:
    """Yield false claims about variables on a device.

    Args:
        subject: the program.
        checked: counts the elements that each kind of statement was compared for.
    """
    checked = {} if checked is None else checked
    reality = Reality(subject)
    idle, views = idle_lanes(reality), Views(subject)
    busy, current = predictions(subject), predictions(subject, idle="length")
    for eqn in subject.program.jaxpr.eqns:
        if eqn.primitive.name != "shard_map":
            continue
        variables, run = inside(eqn)
        operands = [reality.all_runs(np.asarray(value)) for value in subject.read(eqn.invars)]
        results = [jax.device_get(run(*(value[k] for value in operands))) for k in range(reality.count)]
        for k, var in enumerate(variables):
            if var not in busy:
                continue
            arrays = np.stack([result[k] for result in results])
            name = f"{busy[var].equation.primitive.name} {var.aval.str_short()}"
            yield from (f"{name}: {fault}" for fault in _held(eqn.params["mesh"], arrays, busy[var].value.owner))
            for number in range(arrays.shape[1]):
                device, array = Device(eqn.params["mesh"], number, subject.bound.lanes), arrays[:, number]
                owner, intact = busy[var].value.owner, current[var].value.intact if var in current else None
                may = _may_differ(reality, device, owner, array.shape)
                if may is not None:
                    checked["owner"] = checked.get("owner", 0) + array.size
                    if (differing(array, array[reality.claims.base]) & ~may).any():
                        yield f"{name}: changed on device {number}; said: {busy[var].value}"
                yield from (
                    f"{name}: {fault} on device {number}" for fault in _facts(reality, device, array, busy[var].value)
                )
                actual = np.broadcast_to(_of_lanes(reality, idle, device, owner, array.shape), array.shape)
                selection = None if intact is None else views.taken(intact, None, device)
                if selection is not None:
                    checked["kept"] = checked.get("kept", 0) + int(actual.sum())
                    if selection.shape != array.shape or (differing(array, selection) & actual).any():
                        yield f"{name}: is not what idle lanes keep on device {number}; said: {intact}"


def _lanes(device: Device, owner: LaneRows | OneLane, shape: tuple[int, ...]) -> np.ndarray:
    """The lane or packed token of each index along an owner's axis."""
    if isinstance(owner, OneLane):
        assert isinstance(owner.lane, int)
        return np.array([device.first(mesh_axes(owner.split)) + owner.lane])
    return device.first(mesh_axes(owner.split)) + owner.start + np.arange(shape[owner.axis + 1]) // owner.inner


def _spread(rows: np.ndarray, owner: Any, shape: tuple[int, ...]) -> np.ndarray:
    axis = owner.axis + 1 if isinstance(owner, LaneRows | PoolRows) else None
    return rows.reshape(len(rows), *(-1 if d == axis else 1 for d in range(1, len(shape))))


def _may_differ(reality: Reality, device: Device, owner: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """[run, ...]: elements that may differ from the unchanged run; None if unknown."""
    if any(name not in device.sizes for name in getattr(owner, "split", ())):
        return None  # away on other devices
    match owner:
        case Common():
            return np.zeros(shape, bool)
        case OneLane(Symbol()) | LaneRows(_, _, _, Order()):
            return None
        case LaneRows() | OneLane():
            may = partial(reality.tokens_may_differ, layout=owner.packed) if owner.packed else reality.may_differ
            return _spread(may(_lanes(device, owner, shape)), owner, shape)
        case PoolRows(leaf):
            index, count = device.part(owner.split)
            return _spread(np.split(reality.rows(leaf), count, axis=1)[index], owner, shape)
    return None


def _facts(reality: Reality, device: Device, array: np.ndarray, value: Value) -> Iterator[str]:
    """Return the facts about an array on one device, [run, ...], that do not hold."""
    if value.range is not None and array.size and (array.min() < value.range[0] or array.max() > value.range[1]):
        yield f"holds {array.min()} to {array.max()}, outside its range {value.range}"
    match value.fact:
        case DeviceOffset(name, rows):
            if (array != rows * device.at[name]).any():
                yield f"does not hold the {rows} rows of each device before"
        case SlotEntry(leaf, None, less) if (
            isinstance(value.owner, LaneRows) and value.owner.order is None and not value.owner.packed
        ):
            lanes = _lanes(device, value.owner, array.shape)
            slots = reality.all_runs(reality.claims.leaves[leaf])[:, lanes]
            entries = slots - (0 if less is None else less.rows * device.at[less.over])
            if (array != _spread(entries, value.owner, array.shape)).any():
                yield f"is not its lane's entry in the slot map less {less}"


def _held(over: Mesh, arrays: np.ndarray, owner: Any) -> Iterator[str]:
    """True per lane if at most one device on some axes has nonzeros."""
    if not isinstance(owner, LaneRows | OneLane) or not owner.unreduced:
        return
    runs, _, *shape = arrays.shape
    target = arrays.reshape(runs, *over.shape.values(), *shape) != 0
    first = 1 + len(over.shape)
    intact = first + owner.axis if isinstance(owner, LaneRows) else None
    rows = target.any(axis=tuple(axis for axis in range(first, target.ndim) if axis != intact))
    along = tuple(1 + over.axis_names.index(name) for name in owner.unreduced)
    if (rows.sum(axis=along) > 1).any():
        yield f"has rows on several devices along {owner.unreduced}"


def _of_lanes(reality: Reality, lanes: np.ndarray, device: Device, owner: Any, shape: tuple[int, ...]) -> np.ndarray:
    """[run, ...]: elements of lanes [run, lane]; none for pool rows or packed tokens."""
    if not isinstance(owner, LaneRows | OneLane) or owner.packed or isinstance(getattr(owner, "lane", 0), Symbol):
        return np.zeros([1] * len(shape), bool)
    if any(name not in device.sizes for name in owner.split):
        return np.zeros([1] * len(shape), bool)
    if isinstance(owner, LaneRows) and isinstance(owner.order, Order):
        return np.zeros([1] * len(shape), bool)
    index = _lanes(device, owner, shape)
    target = reality.inside(index)
    return _spread(np.where(target, lanes[:, np.where(target, index, 0)], False), owner, shape)
