"""Instances of operations along axes: reductions, running ones, windows, sorts and searches."""

from collections.abc import Callable

import jax.numpy as jnp
from instances.elementwise import ANY, BITS, PRIMITIVES, Builder
from instances.operands import Layout, Operands
from jax import Array, lax


def _apart(operands: Operands, layout: Layout) -> int:
    """An axis, usually without lanes."""
    rest = [axis for axis in range(len(layout.shape)) if axis != layout.axis]
    return operands.one_of(*rest) if rest and operands.chance(0.75) else operands.below(len(layout.shape))


def _axes(operands: Operands, layout: Layout) -> tuple[int, ...]:
    item = _apart(operands, layout)
    return tuple({item, _apart(operands, layout)}) if operands.chance(0.3) else (item,)


def _reduced(function: Callable[..., Array], dtypes: tuple[str, ...]) -> Builder:
    def build(operands: Operands) -> Array:
        x, layout = operands.any(operands.one_of(*dtypes), minimum=2)
        if operands.chance(0.05):
            x = lax.slice_in_dim(x, 0, 0, axis=_apart(operands, layout))
        return function(x, _axes(operands, layout))

    return build


def _found(function: Callable[..., Array]) -> Builder:
    def build(operands: Operands) -> Array:
        x, layout = operands.any(operands.one_of(*ANY), minimum=2)
        return function(x, _apart(operands, layout), operands.one_of(jnp.int32, jnp.int8, jnp.uint8))

    return build


def _general(operands: Operands) -> list[Array]:
    """A reduction of two arrays at once by its own function."""
    layout = operands.layout(minimum=2)
    arrays = operands.alike(layout, "float32", "float32")
    start = operands.x[operands.below(operands.lanes), 0] if operands.chance(0.2) else jnp.float32(1.0)
    body = lambda item, other: (item[0] + 2 * other[0], item[1] * other[1] - item[0])
    return list(lax.reduce(tuple(arrays), (start, jnp.float32(0.0)), body, _axes(operands, layout)))


def _running(function: Callable[..., Array], dtypes: tuple[str, ...]) -> Builder:
    def build(operands: Operands) -> Array:
        x, layout = operands.any(operands.one_of(*dtypes), minimum=2)
        return function(x, axis=_apart(operands, layout), reverse=operands.chance(0.5))

    return build


def _window(operands: Operands, layout: Layout) -> dict[str, tuple]:
    """Windows with strides, padding and dilations, most often one long along lanes."""
    rank = len(layout.shape)
    window = {
        "window_dimensions": [operands.below(4, 1) for _ in range(rank)],
        "window_strides": [operands.below(3, 1) for _ in range(rank)],
        "padding": [(operands.below(2), operands.below(3)) for _ in range(rank)],
        "base_dilation": [operands.one_of(1, 1, 2) for _ in range(rank)],
        "window_dilation": [operands.one_of(1, 1, 2) for _ in range(rank)],
    }
    if operands.chance(0.8):
        for name, values in window.items():
            values[layout.axis] = (0, 0) if name == "padding" else 1
    if operands.chance(0.1):
        name = operands.one_of(*window)
        window[name][layout.axis] = (1, 0) if name == "padding" else 2
    return {name: tuple(values) for name, values in window.items()}


def _windows(name: str, dtypes: tuple[str, ...]) -> Builder:
    def build(operands: Operands) -> Array:
        x, layout = operands.any(operands.one_of(*dtypes), minimum=2)
        return PRIMITIVES[name].bind(x, **_window(operands, layout))

    return build


def _general_window(operands: Operands) -> list[Array]:
    layout = operands.layout(minimum=2)
    arrays = operands.alike(layout, "float32", "float32")
    start = operands.x[operands.below(operands.lanes), 0] if operands.chance(0.2) else jnp.float32(1.0)
    body = lambda item, other: (item[0] + 2 * other[0], item[1] * other[1] - item[0])
    return list(lax.reduce_window(tuple(arrays), (start, jnp.float32(0.0)), body, **_window(operands, layout)))


def _select_and_scatter(operands: Operands) -> Array:
    x, layout = operands.any(minimum=2)
    window = _window(operands, layout)
    window = {name: window[name] for name in ("window_dimensions", "window_strides", "padding")}
    size = [
        (n + low + high - w) // s + 1
        for n, (low, high), w, s in zip(
            x.shape, window["padding"], window["window_dimensions"], window["window_strides"], strict=True
        )
    ]
    source = x.reshape(-1)
    like = Layout(tuple(size), layout.axis, layout.rows, layout.inner)
    if size[layout.axis] == x.shape[layout.axis]:
        source = operands.array(like, kind=operands.kind(like))
    else:
        source = jnp.resize(source, size)
    return PRIMITIVES["select_and_scatter_add"].bind(source, x, select_prim=lax.ge_p, **window)


def _sort(operands: Operands) -> list[Array]:
    """Several operands, several keys, along any axis; in one dimension also the numbers of places."""
    layout = operands.layout(1 if operands.chance(0.4) else None, pool=False)
    count = operands.below(4, 1)
    arrays = operands.alike(layout, *[operands.one_of("float32", "int32", "int8") for _ in range(count)])
    if operands.chance(0.4):
        arrays.append(operands.array(layout, "int32", "counting"))
    axis = _apart(operands, layout)
    keys = operands.below(len(arrays)) + 1 if operands.chance(0.3) else 1
    result = list(lax.sort(tuple(arrays), dimension=axis, num_keys=keys, is_stable=operands.chance(0.7)))
    if len(layout.shape) == 1 and operands.chance(0.5):  # its inverse, and the sorted values put back
        order = jnp.argsort(arrays[0])
        result += [jnp.argsort(order), arrays[0][order][jnp.argsort(order)]]
    return result


def _top(operands: Operands) -> list[Array]:
    x, layout = operands.any(operands.one_of("float32", "int32"), minimum=2)
    axis = _apart(operands, layout)
    return list(lax.top_k(x, operands.below(x.shape[axis]) + 1, axis=axis))


def _approximate(operands: Operands) -> list[Array]:
    x, layout = operands.any(minimum=2)
    axis = _apart(operands, layout)
    return list(lax.approx_max_k(x, operands.below(x.shape[axis]) + 1, axis))


BUILDERS: dict[str, Builder] = {
    **{name: _reduced(getattr(lax, name), ANY) for name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")},
    **{name: _reduced(getattr(lax, name), BITS) for name in ("reduce_and", "reduce_or", "reduce_xor")},
    "argmax": _found(lax.argmax), "argmin": _found(lax.argmin), "reduce": _general, "cumsum": _running(lax.cumsum, ANY),
    "cumprod": _running(lax.cumprod, ANY), "cummax": _running(lax.cummax, ANY), "cummin": _running(lax.cummin, ANY),
    "cumlogsumexp": _running(lax.cumlogsumexp, ("float32",)),
    "reduce_window_sum": _windows("reduce_window_sum", ("float32", "int32")),
    "reduce_window_max": _windows("reduce_window_max", ("float32", "int32")),
    "reduce_window_min": _windows("reduce_window_min", ("float32", "int32")), "reduce_window": _general_window,
    "select_and_scatter_add": _select_and_scatter, "sort": _sort, "top_k": _top, "approx_top_k": _approximate,
}  # fmt: skip
