"""Collectives on lanes that are split over devices."""

from dataclasses import replace

from ir_passes.jaxpr import mesh
from ir_passes.jaxpr.primitives import DEVICE_SUMS
from ir_passes.proof import refusals
from ir_passes.proof.owners import Common, LaneRows, OneLane, Owner, PoolRows, Symbol, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.reductions import without
from ir_passes.proof.site import Site
from ir_passes.proof.values import Value

_REDUCTIONS = (*DEVICE_SUMS, "pmax", "pmin", "pbroadcast", "reduce_scatter")
_GATHERS = ("all_gather", "all_gather_invariant")
_MOVES = (*_GATHERS, "all_to_all", "ppermute")
_DEVICE_PARTS = ("all_to_all", "ppermute", "reduce_scatter")
"""Exchanges after which devices hold different parts of shared values."""


@rule(
    *_REDUCTIONS,
    *_MOVES,
    reads="all_gather_dimension axes axis_index_groups axis_name axis_size concat_axis perm scatter_dimension "
    "split_axis tiled",
)
def collective(site: Site, *operands: Value) -> list[Value]:
    """Exchange values between devices, or reduce under `jax.vmap`.

    An exchange over mesh axes that split lanes mixes them.
    """
    axes = mesh.axes_of(site.eqn)
    branched = sorted(site.prover.diverging & set(axes))
    if branched:
        site.report(*refusals.BRANCHED_EXCHANGE(along=", ".join(branched)))
    reduced = mesh.array_axes_of(site.eqn)
    results = []
    if site.name in _DEVICE_PARTS or site.params.get("axis_index_groups") is not None:
        site.prover.device_varying.update(axes if any(isinstance(value.owner, Common) for value in operands) else ())
    for value, shape in zip(operands, site.shapes, strict=True):
        owner = without(site, value.owner, reduced)
        remaining_shape = tuple(size for axis, size in enumerate(shape) if axis not in reduced)
        results.append(Value(_owner_after_exchange(site, owner, axes, remaining_shape)))
    return results


def _owner_after_exchange(site: Site, owner: Owner, axes: tuple[str, ...], shape: tuple[int, ...]) -> Owner:
    split = set(owner.split) if isinstance(owner, LaneRows | OneLane | PoolRows) else set()
    if any(isinstance(place, Symbol) for place in (*split, getattr(owner, "lane", None))):
        split |= site.prover.device_varying  # each device has its own lane or block
    crossing = sorted(axis for axis in axes if axis in split)
    if crossing:
        return site.mixed(*refusals.crossing_exchange(crossing, isinstance(owner, PoolRows)))
    if isinstance(owner, LaneRows) and owner.order is not None:
        reordered = sorted(site.prover.own_orders.get(owner.order.number, frozenset()) & set(axes))
        if reordered:
            return site.mixed(*refusals.OWN_ORDERS(along=", ".join(reordered)))
    if isinstance(owner, LaneRows | OneLane) and owner.unreduced:
        if set(axes) != set(owner.unreduced) or site.params.get("axis_index_groups") is not None:
            return site.mixed(*refusals.OTHER_SUM(holders=", ".join(owner.unreduced), over=", ".join(axes)))
        return replace(owner, unreduced=())
    keeps_shape = site.name in (*DEVICE_SUMS, "pmax", "pmin", "ppermute")
    return owner if keeps_shape else _owner_after_resize(site, owner, shape)


def _owner_after_resize(site: Site, owner: Owner, shape: tuple[int, ...]) -> Owner:
    dims = ("all_gather_dimension", "split_axis", "concat_axis", "scatter_dimension")
    changed = {int(site.params[name]) for name in dims if name in site.params}
    axis = axis_of(owner)
    if axis is None:
        return owner
    if site.name in _GATHERS and not site.params["tiled"]:
        (new,) = changed
        return moved(owner, axis + (new <= axis))
    if axis in changed or len(site.shape) != len(shape):
        return site.mixed(*refusals.RESIZED_LANES)
    return owner
