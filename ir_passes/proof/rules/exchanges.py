"""Exchanges between devices: collectives, and what they make of lanes that are split over devices."""

from dataclasses import replace

from ir_passes.jaxpr import mesh
from ir_passes.jaxpr.primitives import DEVICE_SUMS
from ir_passes.proof.owners import Common, LaneRows, OneLane, Owner, PoolRows, Symbol, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.reductions import without
from ir_passes.proof.site import Site
from ir_passes.proof.values import Value
from ir_passes.proof.violations import ViolationKind

_REDUCTIONS = (*DEVICE_SUMS, "pmax", "pmin", "pbroadcast", "reduce_scatter")
_GATHERS = ("all_gather", "all_gather_invariant")
_MOVES = (*_GATHERS, "all_to_all", "ppermute")


@rule(
    *_REDUCTIONS,
    *_MOVES,
    reads="all_gather_dimension axes axis_index_groups axis_name axis_size concat_axis perm scatter_dimension "
    "split_axis tiled",
)
def collective(site: Site, *operands: Value) -> list[Value]:
    """Exchange between devices, which mixes lanes over mesh axes that split them; or reduce under `jax.vmap`."""
    axes = mesh.axes_of(site.eqn)
    apart = sorted(site.prover.diverging & set(axes))
    if apart:
        message = (
            f"devices along {', '.join(apart)} may come here or not, each as its own values say, and the others wait"
        )
        remedy = "exchange outside of the branch or loop, or decide by what all of these devices have alike"
        site.report(ViolationKind.COLLECTIVE, message, remedy)
    reduced = mesh.array_axes_of(site.eqn)
    results = []
    for value, shape in zip(operands, site.shapes, strict=True):
        owner = without(site, value.owner, reduced)
        left = tuple(size for axis, size in enumerate(shape) if axis not in reduced)
        results.append(Value(_exchanged(site, owner, axes, left)))
    return results


@rule("ragged_all_to_all", "psend", "precv", ignores="axis_index_groups axis_name axis_size out_shape perm")
def by_counts(site: Site, *operands: Value) -> list[Value]:
    """Refuse lanes in exchanges whose counts and partners are known only when they run."""
    owner = site.join(*(value.owner for value in operands))
    if not isinstance(owner, Common):
        message = "it moves rows of lanes between devices by counts that are known when it runs"
        owner = site.mixed(message, "sum what devices have of all rows, or use all_to_all", ViolationKind.COLLECTIVE)
    return [Value(owner) for _ in site.eqn.outvars]


def _exchanged(site: Site, owner: Owner, axes: tuple[str, ...], shape: tuple[int, ...]) -> Owner:
    """Return the owner of an operand's elements after an exchange over some mesh axes."""
    split = set(owner.split) if isinstance(owner, LaneRows | OneLane | PoolRows) else set()
    if isinstance(owner, OneLane) and isinstance(owner.lane, Symbol):
        split |= site.prover.device_varying
    crossing = sorted(axis for axis in axes if axis in split)
    if crossing:
        away = _sent(site, owner, axes, shape)
        if away is not None:
            return away
        what = "rows of a pool" if isinstance(owner, PoolRows) else "lanes"
        message = f"it exchanges values over mesh axis {', '.join(crossing)}, over which {what} are split"
        remedy = "exchange over axes that split heads or experts only, or undo the exchange before anything else"
        return site.mixed(message, remedy, ViolationKind.COLLECTIVE)
    if isinstance(owner, LaneRows) and owner.order is not None:
        apart = sorted(site.prover.own_orders.get(owner.order.number, frozenset()) & set(axes))
        if apart:
            message = (
                f"each device along {', '.join(apart)} may have rows in an order of its own, and they are exchanged"
            )
            return site.mixed(message, "undo the order before the exchange", ViolationKind.COLLECTIVE)
    if isinstance(owner, LaneRows | OneLane) and owner.unreduced:
        if set(axes) != set(owner.unreduced) or site.params.get("axis_index_groups") is not None:
            held, over = ", ".join(owner.unreduced), ", ".join(axes)
            message = f"a row that one device along {held} has, and all others have as zeros, is summed over {over}"
            return site.mixed(message, f"sum it over {held}", ViolationKind.COLLECTIVE)
        return replace(owner, unreduced=())
    return _along(site, owner, shape) if site.name not in (*DEVICE_SUMS, "pmax", "pmin", "ppermute") else owner


def _sent(site: Site, owner: Owner, axes: tuple[str, ...], shape: tuple[int, ...]) -> LaneRows | OneLane | None:
    """Return the owner of lanes that all devices send to others by a fixed permutation, which its inverse undoes.

    Until then they are no lanes of this device, and come together with nothing that is.
    """
    size, params = site.prover.devices_along(axes), site.params
    if len(axes) != 1 or not isinstance(owner, LaneRows | OneLane) or isinstance(getattr(owner, "lane", 0), Symbol):
        return None
    if isinstance(owner, LaneRows) and owner.order is not None:
        return None
    if site.name == "ppermute":
        to = dict(params["perm"])
        if sorted(to) != list(range(size)) or sorted(to.values()) != list(range(size)):
            return None
        way = sorted(to.items()), sorted((there, here) for here, there in to.items())
    elif site.name == "all_to_all" and isinstance(owner, LaneRows):
        mesh_axes = [axis for axis in owner.split if isinstance(axis, str)]
        if len(mesh_axes) < len(owner.split):
            return None  # lanes of a tile of a loop
        devices = site.prover.devices_along([axis for axis in mesh_axes if axis in site.prover.devices])
        each = site.prover.bound.lanes // devices
        pieces, rest = divmod(shape[owner.axis], size * owner.inner)
        along = {params["split_axis"], params["concat_axis"]}
        if along != {owner.axis} or owner.start or rest or pieces * size != each or params.get("axis_index_groups"):
            return None
        way = "pieces", "pieces"
    else:
        return None
    there, back = (f"sent along {axes[0]}: {one}" for one in way)
    split = owner.split[:-1] if owner.split[-1] == back else (*owner.split, there)
    return replace(owner, split=split)


def _along(site: Site, owner: Owner, shape: tuple[int, ...]) -> Owner:
    """Apply a collective that changes the length of an axis or makes a new one, which may not be that of the lanes."""
    dims = ("all_gather_dimension", "split_axis", "concat_axis", "scatter_dimension")
    changed = {int(site.params[name]) for name in dims if name in site.params}
    axis = axis_of(owner)
    if axis is None:
        return owner
    if site.name in _GATHERS and not site.params["tiled"]:
        (new,) = changed
        return moved(owner, axis + (new <= axis))
    if axis in changed or len(site.shape) != len(shape):
        remedy = "let it change another axis"
        return site.mixed("it changes the axis that holds lanes", remedy, ViolationKind.COLLECTIVE)
    return owner
