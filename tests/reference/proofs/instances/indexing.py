"""Instances of run-time reads and writes: dimension numbers, modes, guards."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from instances.elementwise import Builder
from instances.operands import ROWS, Layout, Operands
from instances.randomness import back
from jax import Array, lax

MODES = (*lax.GatherScatterMode,)[:3]


class Numbers(NamedTuple):
    """Roles of the dimensions of an operand.

    Attributes:
        batching: those that run along with a dimension of the indices.
        indexed: those that have an index, in the order of the columns.
        hidden: dimensions of size one that the window array lacks.
        sizes: of the window.
        points: shape of the indices, without the columns.
        along: for each of `batching`, the dimension of `points`.
    """

    batching: tuple[int, ...]
    indexed: tuple[int, ...]
    hidden: tuple[int, ...]
    sizes: tuple[int, ...]
    points: tuple[int, ...]
    along: tuple[int, ...]


def guarded(operands: Operands, index: Array, size: int) -> Array:
    """An index as drawn, in bounds, or sent past the end."""
    way = operands.below(8)
    if way == 0:
        return jnp.clip(index, 0, max(0, size - 1))
    if way == 1:
        return lax.rem(index, jnp.asarray(size, index.dtype))
    if way == 2:
        return index % jnp.asarray(size, index.dtype)
    if way == 3:
        return jnp.where(index < 0, index + jnp.asarray(size, index.dtype), index)
    if way == 4:
        return jnp.where(operands.ids[:1].reshape([1] * index.ndim) > 0, index, jnp.asarray(size, index.dtype))
    if way == 5:
        return lax.min(index, jnp.asarray(size - 1, index.dtype))
    return index


def column(operands: Operands, shape: tuple[int, ...], size: int) -> Array:
    """Indices along one dimension, [*points]: counts, own, shared, rows, a permutation."""
    if not shape:
        index = operands.one_of(
            operands.ids[operands.below(9)], operands.own[operands.below(operands.lanes), 0], operands.slots[0]
        )
        return guarded(operands, index, size)
    dtype = operands.one_of("int32", "int32", "int32", "int8", "uint8")
    axes = [axis for axis, length in enumerate(shape) if length % operands.lanes == 0 and length]
    way = operands.below(7)
    if way < 2:
        result = lax.broadcasted_iota(dtype, shape, operands.one_of(*axes) if axes else operands.below(len(shape)))
        return guarded(operands, result, size) if operands.chance(0.2) else result
    if way == 2 and axes:
        axis = operands.one_of(*axes)
        order = operands.order(shape[axis])
        order = order if operands.chance(0.6) else jnp.argsort(order)
        return lax.broadcast_in_dim(order, shape, (axis,))
    if way == 3 and axes and shape[axes[0]] == operands.lanes:
        result = lax.broadcast_in_dim(operands.slots, shape, (axes[0],))
        return result if operands.chance(0.7) else guarded(operands, result, ROWS)
    if way < 6 and axes:
        axis = operands.one_of(*axes)
        layout = Layout(shape, axis, operands.lanes, shape[axis] // operands.lanes)
        result = operands.array(layout, dtype, operands.one_of("lanes", "lanes", "ordered", "one", "mixed"))
    else:
        result = operands.array(Layout(shape, 0, operands.lanes), dtype, operands.one_of("shared", "one"))
    return guarded(operands, result, size)


def numbers(operands: Operands, shape: tuple[int, ...], lanes_axis: int) -> Numbers:
    """Draw dimension numbers; most keep, pair or index whole lanes."""
    role = {axis: operands.one_of("whole", "whole", "index", "index", "pair", "cut") for axis in range(len(shape))}
    role[lanes_axis] = operands.one_of("whole", "index", "pair", "index", "cut")
    batching = tuple(axis for axis in operands.some(len(shape), len(shape)) if role[axis] == "pair")
    indexed = tuple(axis for axis in operands.some(len(shape), len(shape)) if role[axis] == "index")
    free = [operands.one_of(operands.lanes, operands.lanes, operands.lanes * 2, 1, 3) for _ in range(operands.below(3))]
    lengths = [*(shape[axis] for axis in batching), *free]
    order = operands.some(len(lengths), len(lengths))
    points = tuple(lengths[k] for k in order)
    along = tuple(order.index(k) for k in range(len(batching)))
    sizes, hidden = [], []
    for axis, length in enumerate(shape):
        size = length
        if role[axis] == "pair" or (role[axis] == "index" and operands.chance(0.8)):
            size = 1
        elif role[axis] in ("cut", "index"):
            size = operands.below(length) + 1
        sizes.append(size)
        if size == 1 and role[axis] != "pair" and operands.chance(0.8):
            hidden.append(axis)
    return Numbers(
        tuple(sorted(batching)),
        indexed,
        tuple(hidden),
        tuple(sizes),
        points,
        tuple(along[batching.index(axis)] for axis in sorted(batching)),
    )


def indices(operands: Operands, n: Numbers, shape: tuple[int, ...]) -> Array:
    """[*points, column]: put together from columns, or one array of numbers."""
    if not n.indexed:
        return jnp.zeros((*n.points, 0), jnp.int32)
    if operands.chance(0.15):
        full = (*n.points, len(n.indexed))
        axes = [axis for axis, length in enumerate(full) if length == operands.lanes]
        layout = Layout(full, operands.one_of(*axes or [0]), operands.lanes)
        return operands.array(
            layout, "int32", "lanes" if axes and operands.chance(0.5) else operands.one_of("shared", "counting")
        )
    columns = [column(operands, n.points, shape[axis]).astype("int32")[..., None] for axis in n.indexed]
    return columns[0] if len(columns) == 1 else lax.concatenate(columns, len(n.points))


def _operand(operands: Operands, dtype: str) -> tuple[Array, Layout]:
    layout = operands.layout()
    kind = operands.one_of("shared", *[operands.kind(layout)] * 4)
    if dtype == "int32" and operands.chance(0.3):
        kind = operands.one_of("counting", "slots") if layout.rows != ROWS else kind
    return operands.array(layout, dtype, kind), layout


def _restored(operands: Operands, array: Array, layout: Layout) -> list[Array]:
    """Read or written rows; reordered rows may be put back."""
    count = layout.rows * layout.inner
    axes = [axis for axis, length in enumerate(array.shape) if length == count and count in operands.orders]
    return [array, *(back(operands, array, Layout(array.shape, axis, layout.rows)) for axis in axes)]


def _gather(operands: Operands) -> list[Array]:
    dtype = operands.one_of("float32", "float32", "int32", "uint8", "bool")
    x, layout = _operand(operands, dtype)
    n = numbers(operands, x.shape, layout.axis)
    window = x.ndim - len(n.hidden) - len(n.batching)
    dims = lax.GatherDimensionNumbers(
        tuple(sorted(operands.some(window, window + len(n.points)))), n.hidden, n.indexed, n.batching, n.along
    )
    fill = operands.one_of(None, 3, 0) if dtype != "bool" else None
    mode = operands.one_of(*MODES)
    return _restored(
        operands, lax.gather(x, indices(operands, n, x.shape), dims, n.sizes, mode=mode, fill_value=fill), layout
    )


def _scatter(function: Any) -> Builder:
    def build(operands: Operands) -> list[Array]:
        dtype = operands.one_of("float32", "float32", "int32", "uint8")
        x, layout = _operand(operands, dtype)
        n = numbers(operands, x.shape, layout.axis)
        sizes = [size for axis, size in enumerate(n.sizes) if axis not in n.hidden and axis not in n.batching]
        rank = len(sizes) + len(n.points)
        places = tuple(sorted(operands.some(len(sizes), rank)))
        rest, window = iter(n.points), iter(sizes)
        shape = tuple(next(window) if axis in places else next(rest) for axis in range(rank))
        dims = lax.ScatterDimensionNumbers(places, n.hidden, n.indexed, n.batching, n.along)
        index = indices(operands, n, x.shape)
        return _restored(operands, function(operands, x, index, _updates(operands, shape, dtype), dims), layout)

    return build


def _updates(operands: Operands, shape: tuple[int, ...], dtype: str) -> Array:
    """Written values: lanes along any fitting axis, shared values, or counts."""
    if not shape:
        return operands.array(
            Layout((1,), 0, operands.lanes), dtype, operands.one_of("shared", "one", "picked")
        ).reshape(())
    axes = [axis for axis, length in enumerate(shape) if length % operands.lanes == 0 and length]
    if not axes or operands.chance(0.25):
        kind = "counting" if dtype == "int32" and operands.chance(0.4) else operands.one_of("shared", "shared", "one")
        return operands.array(Layout(shape, 0, operands.lanes), dtype, kind)
    axis = operands.one_of(*axes)
    layout = Layout(shape, axis, operands.lanes, shape[axis] // operands.lanes)
    return operands.array(layout, dtype, operands.one_of("lanes", "lanes", "ordered", "mixed"))


def _set(operands: Operands, x: Array, array: Array, updates: Array, dims: Any) -> Array:
    mode = operands.one_of(*MODES)
    if operands.chance(0.15):
        return lax.scatter_apply(x, array, lambda old: old * 2 + 1, dims, update_shape=updates.shape, mode=mode)
    return lax.scatter(x, array, updates, dims, mode=mode)


def _combined(function: Any) -> Any:
    return lambda operands, x, index, updates, dims: function(x, index, updates, dims, mode=operands.one_of(*MODES))


def _starts(operands: Operands, shape: tuple[int, ...]) -> list[Array]:
    return [column(operands, (), size) for size in shape]


def _window(operands: Operands, shape: tuple[int, ...]) -> list[int]:
    return [operands.one_of(size, size, 1, operands.below(size) + 1) for size in shape]


def _dynamic_slice(operands: Operands) -> list[Array]:
    x, layout = _operand(operands, operands.one_of("float32", "int32"))
    return _restored(operands, lax.dynamic_slice(x, _starts(operands, x.shape), _window(operands, x.shape)), layout)


def _dynamic_update_slice(operands: Operands) -> list[Array]:
    dtype = operands.one_of("float32", "int32")
    x, layout = _operand(operands, dtype)
    updates = _updates(operands, tuple(_window(operands, x.shape)), dtype)
    return _restored(operands, lax.dynamic_update_slice(x, updates, _starts(operands, x.shape)), layout)


BUILDERS: dict[str, Builder] = {
    "gather": _gather, "scatter": _scatter(_set), "scatter-add": _scatter(_combined(lax.scatter_add)),
    "scatter-sub": _scatter(_combined(lax.scatter_sub)), "scatter-mul": _scatter(_combined(lax.scatter_mul)),
    "scatter-min": _scatter(_combined(lax.scatter_min)), "scatter-max": _scatter(_combined(lax.scatter_max)),
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice,
}  # fmt: skip
