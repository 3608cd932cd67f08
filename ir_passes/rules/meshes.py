"""Programs over a mesh of devices: shard_map and collectives."""

from typing import Any

from ir_passes import ir
from ir_passes.rules.registry import rule
from ir_passes.site import Site
from ir_passes.values import COMMON, Common, Iota, OneLane, Owner, PoolRows, Rows, Slot, Symbol, Value, axis_of
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
    body = ir.closed(site.params["jaxpr"])
    inputs = [
        _sharded(site, value, _spec(spec))
        for value, spec in zip(operands, site.params["in_specs"], strict=True)
    ]  # fmt: skip
    results = site.prover.run(body.jaxpr, [site.prover.constant(c) for c in body.consts], inputs)
    return [
        Value(_gathered(site, value.owner, _spec(spec)), kept=value.kept, version=value.version)
        for value, spec in zip(results, site.params["out_specs"], strict=True)
    ]


def _spec(spec: Any) -> dict[int, tuple[str, ...]]:
    """Mesh axes by array axis."""
    return {
        axis: (names,) if isinstance(names, str) else tuple(map(str, names))
        for axis, names in enumerate(spec)
        if names is not None and names != ()
    }


def _sharded(site: Site, value: Value, spec: dict[int, tuple[str, ...]]) -> Value:
    owner, axis = value.owner, axis_of(value.owner)
    if axis is not None and axis in spec:
        if isinstance(owner, PoolRows):
            remedy = "split lanes with a row pool, or keep the pool whole on every device"
            return Value(site.mixed("rows of a pool with a slot map are split over devices", remedy))
        if isinstance(owner, Rows):
            if owner.order is not None or owner.start or owner.split:
                return Value(site.mixed("lanes are split over devices out of order", "split them in order"))
            owner = Rows(axis, owner.inner, 0, None, spec[axis])
    if isinstance(owner, Common):
        site.prover.telling.update(name for names in spec.values() for name in names)
    fact = value.fact if isinstance(value.fact, Slot) or (isinstance(value.fact, Iota) and not spec) else None
    return Value(owner, 0, value.range, fact, value.kept, value.version)


def _gathered(site: Site, owner: Owner, spec: dict[int, tuple[str, ...]]) -> Owner:
    if not isinstance(owner, Rows | OneLane) or not owner.split:
        return owner
    if isinstance(owner, Rows) and spec.get(owner.axis) == owner.split and owner.order is None and not owner.start:
        return Rows(owner.axis, owner.inner)
    message = (
        f"a result that differs between lanes, which are split over {', '.join(owner.split)}, is not put together so"
    )
    return site.mixed(message, "give it the out_spec of its lanes", ViolationKind.COLLECTIVE)
