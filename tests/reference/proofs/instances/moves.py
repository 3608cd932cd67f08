"""Instances of operations that move elements about: views, parts, padding, joined arrays, counts."""

import math

import jax.numpy as jnp
from instances.elementwise import ANY, PRIMITIVES, Builder
from instances.operands import INTEGERS, Layout, Operands
from jax import Array, lax

DTYPES = (*ANY, "bool")
COUNTS = ("lanes", "one", "shared", "counting", "slots", "ordered")


def _array(operands: Operands, layout: Layout) -> Array:
    """Any array of a layout; integers may have facts that moves keep or lose."""
    dtype = operands.one_of(*DTYPES)
    integer = dtype in INTEGERS and layout.rows == operands.lanes
    return operands.array(layout, dtype, operands.one_of(*COUNTS) if integer else operands.kind(layout))


def _reshape(operands: Operands) -> Array:
    """Reshape to any grouping of elements: merged, split and unit axes."""
    x = _array(operands, operands.layout())
    primes, rest = [], x.size
    while rest > 1:
        factor = next(f for f in range(2, rest + 1) if rest % f == 0)
        primes.append(factor)
        rest //= factor
    shape = [1] * operands.below(5, 1)
    if operands.chance(0.6):  # merge or split in place
        shape = list(x.shape)
        index = operands.below(len(shape))
        if operands.chance(0.5) and len(shape) > 1:
            index = min(index, len(shape) - 2)
            shape[index : index + 2] = [shape[index] * shape[index + 1]]
        else:
            part = next((f for f in operands.some(5, 5) if f > 1 and shape[index] % f == 0), 1)
            shape[index : index + 1] = [shape[index] // part, part]
        if operands.chance(0.3):
            shape.insert(operands.below(len(shape) + 1), 1)
    else:
        for factor in primes:
            shape[operands.below(len(shape))] *= factor
    if operands.chance(0.3):
        return lax.reshape(x, shape, dimensions=operands.some(x.ndim, x.ndim))
    return lax.reshape(x, shape)


def _squeeze(operands: Operands) -> Array:
    x = _array(operands, operands.layout())
    axes = operands.some(operands.below(3, 1), x.ndim + 1)
    wide = jnp.expand_dims(x, axes)
    return lax.squeeze(wide, [axis for axis in range(wide.ndim) if wide.shape[axis] == 1 and operands.chance(0.7)])


def _broadcast(operands: Operands) -> Array:
    layout = operands.layout()
    x = _array(operands, layout)
    if operands.chance(0.3):
        x = lax.slice_in_dim(x, 0, 1, axis=operands.below(x.ndim))
    rank = x.ndim + operands.below(3)
    dims = sorted(operands.some(x.ndim, rank))
    shape = [operands.below(5, 1) for _ in range(rank)]
    for index, size in zip(dims, x.shape, strict=True):
        if size != 1 or operands.chance(0.5):
            shape[index] = size
    return lax.broadcast_in_dim(x, shape, dims)


def _slice(operands: Operands) -> Array:
    layout = operands.layout()
    x = _array(operands, layout)
    starts = [operands.one_of(0, operands.below(size)) for size in x.shape]
    stops = [
        operands.one_of(size, operands.below(size + 1, start + 1)) for start, size in zip(starts, x.shape, strict=True)
    ]
    if layout.inner > 1 and operands.chance(0.5):
        lane = operands.below(layout.rows)
        starts[layout.axis], stops[layout.axis] = lane * layout.inner, (lane + 1) * layout.inner
    return lax.slice(x, starts, stops, None if operands.chance(0.5) else [operands.one_of(1, 1, 2) for _ in x.shape])


def _pad(operands: Operands) -> Array:
    layout = operands.layout()
    x = _array(operands, layout)
    config = [
        (operands.one_of(0, 0, -1, 1, 2), operands.one_of(0, 0, -1, 1, 2), operands.one_of(0, 0, 0, 1)) for _ in x.shape
    ]
    if operands.chance(0.6):
        config[layout.axis] = (layout.inner * operands.below(3), operands.below(3), 0)
    filler = x.reshape(-1)[0] if operands.chance(0.2) else jnp.zeros((), x.dtype)
    return lax.pad(x, filler, config)


def _pieces(operands: Operands, joined: int, layout: Layout) -> list[Array]:
    """Concatenate lanes in any order with shared parts, or arrays side by side."""
    if operands.chance(0.5) and layout.rows == operands.lanes:
        axis, width = joined, layout.inner
        full = operands.array(Layout(layout.shape, axis, layout.rows, width)) if axis == layout.axis else None
        if full is not None:
            parts = [lax.slice_in_dim(full, k * width, (k + 1) * width, axis=axis) for k in range(layout.rows)]
            if operands.chance(0.3):
                parts[operands.below(len(parts))] = jnp.zeros_like(parts[0])
            if operands.chance(0.3):
                parts = [parts[k] for k in operands.some(len(parts), len(parts))]
            return parts[: operands.one_of(len(parts), operands.below(len(parts)) + 1)]
    return operands.alike(layout, *["float32"] * operands.below(4, 1))


def _concatenate(operands: Operands) -> Array:
    layout = operands.layout()
    if operands.chance(0.2):
        column = Layout((*layout.shape, 1), layout.axis, layout.rows, layout.inner)
        columns = lax.concatenate(operands.alike(column, *["int32"] * operands.below(4, 1)), len(layout.shape))
        return lax.slice_in_dim(columns, 0, 1, axis=columns.ndim - 1)
    axis = operands.one_of(layout.axis, operands.below(len(layout.shape)))
    return lax.concatenate(_pieces(operands, axis, layout), axis)


def _split(operands: Operands) -> list[Array]:
    layout = operands.layout()
    x = _array(operands, layout)
    axis = operands.one_of(layout.axis, operands.below(x.ndim))
    cut = operands.below(x.shape[axis] + 1)
    if axis == layout.axis and operands.chance(0.6):
        cut = layout.inner * operands.below(layout.rows + 1)
    return list(lax.split(x, (cut, x.shape[axis] - cut), axis=axis))


def _stack(operands: Operands) -> Array:
    layout = operands.layout()
    if layout.rows == operands.lanes and layout.inner == 1 and operands.chance(0.5):
        x = operands.array(Layout(layout.shape, layout.axis, layout.rows))
        parts = [lax.index_in_dim(x, k, layout.axis, keepdims=False) for k in range(layout.rows)]
        return PRIMITIVES["stack"].bind(*parts, axis=operands.below(x.ndim))
    parts = operands.alike(layout, *["float32"] * operands.below(4, 1))
    return PRIMITIVES["stack"].bind(*parts, axis=operands.below(parts[0].ndim + 1))


def _iota(operands: Operands) -> Array:
    """Counts that may overflow their dtype, to be divided, sliced and compared."""
    shape = [operands.below(5, 1) for _ in range(operands.below(4, 1))]
    if operands.chance(0.1):
        shape = [300]
    dtype = operands.one_of("float32", "bool" if math.prod(shape) <= 2 else "int8", *INTEGERS)
    counts = lax.broadcasted_iota(dtype, shape, operands.below(len(shape)))
    return counts if dtype == "bool" else lax.div(counts, jnp.asarray(operands.below(3, 1), dtype))


BUILDERS: dict[str, Builder] = {
    "reshape": _reshape,
    "squeeze": _squeeze,
    "broadcast_in_dim": _broadcast,
    "transpose": lambda o: (lambda x: lax.transpose(x, o.some(x.ndim, x.ndim)))(_array(o, o.layout())),
    "rev": lambda o: (lambda x: lax.rev(x, o.some(o.below(x.ndim) + 1, x.ndim)))(_array(o, o.layout())),
    "pad": _pad,
    "slice": _slice,
    "split": _split,
    "unstack": lambda o: (lambda x: PRIMITIVES["unstack"].bind(x, axis=o.below(x.ndim)))(_array(o, o.layout())),
    "concatenate": _concatenate,
    "stack": _stack,
    "tile": lambda o: (lambda x: PRIMITIVES["tile"].bind(x, reps=tuple(o.below(3, 1) for _ in x.shape)))(o.any()[0]),
    "iota": _iota,
}  # fmt: skip
