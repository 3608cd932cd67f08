"""Operations along axes: reductions, scans, sorts and searches."""

import math
from dataclasses import replace

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.dtypes import is_integer
from ir_passes.jaxpr.primitives import CUMULATIVE, REDUCTIONS
from ir_passes.proof import refusals
from ir_passes.proof.intervals import fits
from ir_passes.proof.owners import COMMON, Common, LaneRows, Order, Owner, PoolRows, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.shapes import reshaped_value
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import reveals_places
from ir_passes.proof.values import Counts, Greatest, Iota, OneHot, Permuted, Range, Value

_PICKS = ("reduce_max", "reduce_min", "reduce_and", "reduce_or")


def without(site: Site, owner: Owner, axes: tuple[int, ...]) -> Owner:
    owner = site.apart(owner, axes, refusals.REDUCED_LANES(axis=axis_of(owner)))
    return moved(owner, lambda axis: axis - sum(other < axis for other in axes))


@rule(*REDUCTIONS, reads="axes index_dtype", ignores="out_sharding")
def reduction(site: Site, x: Value) -> list[Value]:
    axes = tuple(map(int, site.params["axes"]))
    if not site.name.startswith("arg") and all(site.shapes[0][axis] == 1 for axis in axes):
        if is_integer(site.eqn.outvars[0].aval.dtype) and not isinstance(x.owner, PoolRows):
            return [reshaped_value(site, x)]
    bounds = None
    if site.name in _PICKS and math.prod(site.shapes[0]):
        # bits can make numbers outside the range; an empty reduction gives a limit of the dtype
        is_zero_or_one = x.range is not None and 0 <= x.range[0] and x.range[1] <= 1
        bounds = x.range if is_zero_or_one or site.name in ("reduce_max", "reduce_min") else None
    elif site.name in ("argmax", "argmin"):
        bounds = (0, site.shapes[0][axes[0]] - 1)
    elif site.name == "reduce_sum" and x.range is not None:
        count = math.prod(site.shapes[0][axis] for axis in axes)
        bounds = (x.range[0] * count, x.range[1] * count)
    fact = None
    counts = site.name == "reduce_sum" and fits(site.eqn.outvars[0].aval, site.shapes[0][axes[0]] if axes else 1)
    if counts and isinstance(x.fact, OneHot) and axes == (x.fact.rows,) and len(site.shape) == 1:
        fact = Counts(site.prover.same_counts.get(x.fact.key, x.fact.key))
    if site.name == "reduce_max" and site.shape == () and is_integer(site.eqn.outvars[0].aval.dtype):
        fact = Greatest(x.number)
    return [Value(without(site, x.owner, axes), range=bounds, fact=fact)]


@rule("reduce", reads="dimensions", ignores="computation jaxpr")
def general_reduction(site: Site, *operands: Value) -> list[Value]:
    """Reduce; half of the operands are initial values."""
    axes = tuple(map(int, site.params["dimensions"]))
    owner = site.join(*(without(site, value.owner, axes) if shape else value.owner
                        for value, shape in zip(operands, site.shapes, strict=True)))  # fmt: skip
    return [Value(owner) for _ in site.eqn.outvars]


@rule(*CUMULATIVE, reads="axis", ignores="reverse")
def running(site: Site, x: Value) -> list[Value]:
    axis, text = int(site.params["axis"]), refusals.SUMMED_UP_LANES if site.name == "cumsum" else refusals.RUNNING_LANES
    owner = site.apart(x.owner, (axis,), text(axis=axis))
    # the product of zeros and ones is zero or one
    stays_bounded = site.name in ("cummax", "cummin") or (
        site.name == "cumprod" and x.range in ((0, 0), (0, 1), (1, 1))
    )
    bounds = _counted(site) if site.name == "cumsum" else None
    return [Value(owner, range=x.range if stays_bounded else bounds)]


def _counted(site: Site) -> Range | None:
    """Return bounds of running sums of zeros with ones added, as in `jnp.repeat`."""
    eqn = site.maker(site.eqn.invars[0])
    if eqn is None or eqn.primitive.name != "scatter-add" or eqn.params["unique_indices"]:
        return None
    operand, _, updates = (site.prover.read(site.env, atom) for atom in eqn.invars)
    count = math.prod(ir.shape_of(eqn.invars[2]))
    is_count = operand.range == (0, 0) and updates.range == (1, 1) and fits(site.eqn.outvars[0].aval, count)
    return (0, count) if is_count else None


@rule(
    "top_k",
    "approx_top_k",
    reads="axis k reduction_dimension",
    ignores="aggregate_to_topk is_max_k is_stable recall_target reduction_input_size_override",
)
def top_k(site: Site, x: Value) -> list[Value]:
    axis = int(site.params.get("axis", site.params.get("reduction_dimension", len(site.shape) - 1)))
    axis %= len(site.shape)
    owner = site.apart(x.owner, (axis,), refusals.COMPARED_LANES(axis=axis))
    # a TPU's approximation may give -1, the index of no element
    first = -1 if site.name == "approx_top_k" else 0
    return [Value(owner, range=x.range), Value(owner, range=(first, site.shapes[0][axis] - 1))]


@rule(
    *"reduce_window_sum reduce_window_max reduce_window_min reduce_window select_and_scatter_add".split(),
    reads="window_dimensions window_strides padding base_dilation window_dilation",
    ignores="jaxpr select_prim",
    accepts={"consts": ((),)},
)
def windows(site: Site, *operands: Value) -> list[Value]:
    params = site.params
    columns = [params["window_dimensions"], params["window_strides"], params["padding"]]
    columns += [params[name] for name in ("base_dilation", "window_dilation") if name in params]
    axes = {axis for column in columns for axis, size in enumerate(column) if size not in (1, (0, 0))}
    texts = (refusals.WINDOWS_OF_LANES(axis=axis_of(value.owner)) for value in operands)
    owner = site.join(*(site.apart(value.owner, axes, text) for value, text in zip(operands, texts, strict=True)))
    return [Value(owner) for _ in site.eqn.outvars]


@rule("sort", reads="dimension is_stable num_keys")
def sort(site: Site, *operands: Value) -> list[Value]:
    """Sort within each lane, or permute the rows of lanes.

    A sort along the axis of the lanes permutes rows: the position of a row depends on every lane, but its content does
    not. The inverse permutation undoes the order.
    """
    axis = int(site.params["dimension"])
    if all(axis_of(value.owner) != axis and not isinstance(value.fact, Permuted) for value in operands):
        owner = site.join(*(value.owner for value in operands))
        if isinstance(owner, LaneRows) and owner.order is not None:
            sides = zip(operands, site.shapes, strict=True)
            if any(reveals_places(value, shape, owner.axis) for value, shape in sides):
                owner = site.mixed(*refusals.SHARED_ROWS)
        return [Value(owner, range=value.range) for value in operands]
    key = operands[0]
    if len(site.shape) != 1 or site.params["num_keys"] != 1:
        owner = site.mixed(*refusals.SORTED_LANES(axis=axis))
        return [Value(owner, range=value.range) for value in operands]
    if isinstance(key.fact, Permuted) and key.fact.div == 1:
        order = Order(key.fact.order.number, not key.fact.order.inverse)
    else:
        # for equal keys, an unstable sort may give any order
        stable = site.params["is_stable"]
        order = Order(site.prover.number("order", key.number) if stable else site.prover.fresh())
        site.prover.sort_keys[order] = key.number
        previous_axes = site.prover.own_orders.get(order.number, frozenset())
        varying_axes = site.prover.varying(site.eqn.invars[0]) if stable else frozenset(site.prover.devices)
        site.prover.own_orders[order.number] = previous_axes | varying_axes
    results = [_sorted(site, value, order) for value in operands]
    number = site.prover.fresh()
    site.prover.same_counts[number] = key.number
    return [results[0].replace(number=number), *results[1:]]


def _sorted(site: Site, value: Value, order: Order) -> Value:
    size = site.shape[0]
    mixed = site.mixed(*refusals.ORDER_OF_ALL)
    if isinstance(value.fact, Permuted):
        restores_order = Order(value.fact.order.number, not value.fact.order.inverse) == order and value.fact.div == 1
        return Value(COMMON, range=(0, size - 1), fact=Iota(0)) if restores_order else Value(mixed, range=value.range)
    if isinstance(value.fact, Iota) and value.fact.axis == 0:
        return Value(mixed, range=value.range, fact=Permuted(order, value.fact.div))
    if isinstance(value.owner, Common):
        return Value(mixed, range=value.range)
    return Value(permuted(site, value.owner, order), range=value.range)


def permuted(site: Site, owner: Owner, order: Order, div: int = 1) -> Owner:
    if isinstance(owner, LaneRows):
        if owner.order is None:
            return replace(owner, inner=owner.inner * div, order=order, unreduced=())
        if div == 1 and owner.order == Order(order.number, not order.inverse):
            return replace(owner, order=None, unreduced=())
    return site.mixed(*refusals.PUT_IN_ORDER)
