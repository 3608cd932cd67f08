"""Instances over a mesh: collectives over any axis, lanes split over any."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from instances.elementwise import Builder
from instances.idle import IdleOperands
from instances.operands import ROWS, Layout, Operands
from jax import Array, lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

LANES = 4
"""Lanes of an instance, so that they can be split over two devices and over four."""
SHAPES = ((2,), (2, 2), (4, 2), (2, 4))
Collective = Callable[[Operands, Mesh, Array], Array]


@functools.cache
def mesh(shape: tuple[int, ...]) -> Mesh:
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), ("data", "model")[: len(shape)])


def _names(operands: Operands, over: Mesh) -> Any:
    return operands.one_of(*over.axis_names, *over.axis_names, tuple(over.axis_names))


def _all_gather(operands: Operands, over: Mesh, x: Array) -> Array:
    tiled, to = operands.chance(0.7), operands.one_of("varying", "invarying")
    return lax.all_gather(x, _names(operands, over), axis=operands.below(x.ndim + (not tiled)), tiled=tiled, to=to)


def _all_to_all(operands: Operands, over: Mesh, x: Array) -> Array:
    name, source, target = operands.one_of(*over.axis_names), operands.below(x.ndim), operands.below(x.ndim)
    return lax.all_to_all(x, name, source, target, tiled=operands.chance(0.7))


def _ppermute(operands: Operands, over: Mesh, x: Array) -> Array:
    """A permutation of some of the devices; those that nobody sends to get zeros."""
    name = operands.one_of(*over.axis_names)
    size = over.shape[name]
    count = operands.below(size + 1, 1)
    return lax.ppermute(x, name, list(zip(operands.some(count, size), operands.some(count, size), strict=True)))


def _sent_and_back(operands: Operands, over: Mesh, x: Array) -> Array:
    """Exchanged by a permutation, or piece by piece, worked on, and most often sent home."""
    name = operands.one_of(*over.axis_names)
    size, axis = over.shape[name], operands.below(x.ndim)
    to = operands.some(size, size)
    result = list(enumerate(to)) if operands.chance(0.2) else [(target, source) for source, target in enumerate(to)]
    work = lambda x: operands.one_of(lambda: x * 2, lambda: jnp.tanh(x), lambda: jnp.flip(x, operands.below(x.ndim)))()
    permuted = lambda: lax.ppermute(work(lax.ppermute(x, name, list(enumerate(to)))), name, result)
    pieces = lambda: lax.all_to_all(work(lax.all_to_all(x, name, axis, axis, tiled=True)), name, axis, axis, tiled=True)
    return operands.one_of(permuted, pieces)()


def _scattered(operands: Operands, over: Mesh, x: Array) -> Array:
    dim, tiled = operands.below(x.ndim), operands.chance(0.7)
    return lax.psum_scatter(x, operands.one_of(*over.axis_names), scatter_dimension=dim, tiled=tiled)


def _by_place(operands: Operands, over: Mesh, x: Array) -> Array:
    """Device work by position: addition, indexing, or selection."""
    index = lax.axis_index(operands.one_of(*over.axis_names))
    axis = operands.below(x.ndim)
    ways = (
        lambda: x + index.astype(x.dtype),
        lambda: lax.dynamic_index_in_dim(x, index, axis),
        lambda: jnp.where(index == 0, x, jnp.flip(x, axis)),
        lambda: lax.psum(lax.dynamic_index_in_dim(x, index, axis), operands.one_of(*over.axis_names)),
        lambda: x.at[index % x.shape[0]].set(0),
    )
    return operands.one_of(*ways)()


def _numbered(operands: Operands, over: Mesh, x: Array) -> Array:
    """Rows at numbers that may differ between devices, placed and summed."""
    name, axis, zero = operands.one_of(*over.axis_names), operands.below(x.ndim), jnp.int32(0)
    size = over.shape[name]
    ways = (
        lambda: lax.psum_scatter(jnp.arange(size), name, tiled=True)[0] // size,
        lambda: lax.all_to_all(jnp.arange(size), name, 0, 0, tiled=True)[0],
        lambda: lax.ppermute(jnp.int32(1), name, [(0, 1)]),
        lambda: lax.scan(lambda k, _: (lax.axis_index(name), k), zero, None, length=2)[1][1],
        lambda: lax.psum(zero + 1, name) - 1,
    )
    number = operands.one_of(*ways)() % x.shape[axis]
    row = lax.dynamic_index_in_dim(x, number, axis)
    row = lax.psum(row, name) if operands.chance(0.7) else row
    placed = lax.dynamic_update_index_in_dim(jnp.zeros_like(x), row, number, axis)
    return lax.psum(placed, name) if operands.chance(0.5) else placed


COLLECTIVES: dict[str, Collective] = {
    "psum": lambda o, over, x: lax.psum(x, _names(o, over)),
    "pmax": lambda o, over, x: lax.pmax(x, _names(o, over)),
    "pmin": lambda o, over, x: lax.pmin(x, _names(o, over)),
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "sent and back": _sent_and_back,
    "reduce_scatter": _scattered,
    "axis_index": _by_place,
    "number": _numbered,
    "shard_map": lambda o, over, x: o.one_of(x, x * 2, jnp.flip(x, o.below(x.ndim))),
}


def _spec(operands: Operands, layout: Layout, over: Mesh) -> list[Any]:
    """Draw a spec: usually lanes over one axis and a dimension over another."""
    names = [over.axis_names[k] for k in operands.some(len(over.axis_names), len(over.axis_names))]
    spec: list[Any] = [None] * len(layout.shape)
    if operands.chance(0.65) and layout.rows != ROWS:
        spec[layout.axis] = names.pop()
        if names and operands.chance(0.15):
            spec[layout.axis] = (spec[layout.axis], names.pop())
    rest = [axis for axis in range(len(layout.shape)) if axis != layout.axis and layout.shape[axis] % 4 == 0]
    if names and rest and operands.chance(0.7):
        spec[operands.one_of(*rest)] = names.pop()
    return spec


def _run(local: Callable[..., Any], over: Mesh, specs: Any, result: Any, check_vma: bool) -> Callable[..., list[Array]]:
    """Run over a mesh; `check_vma` makes JAX refuse wrong out_specs."""
    run = jax.shard_map(local, mesh=over, in_specs=specs, out_specs=result, check_vma=check_vma)
    return lambda *args: list(run(*args))


def _sharded(collective: Collective) -> Builder:
    """Two arrays of one shape enter; results of a collective and more leave."""

    def build(operands: Operands) -> list[Array]:
        over = mesh(operands.one_of(*SHAPES))
        pool = operands.chance(0.1)
        inner = 1 if pool else operands.one_of(1, 1, 2, 4)
        shape = [operands.one_of(4, 4, 8) for _ in range(operands.below(4, 2))]
        axis = operands.below(len(shape))
        rows = ROWS if pool else operands.lanes
        shape[axis] = rows * inner
        layout = Layout(tuple(shape), axis, rows, inner)
        x, y = operands.alike(layout, "float32", "float32")
        count = operands.per_lane(layout) if isinstance(operands, IdleOperands) and not pool else jnp.ones(shape)
        spec = _spec(operands, layout, over)
        other = spec if operands.chance(0.7) else _spec(operands, layout, over)

        def local(x: Array, y: Array, count: Array) -> tuple[Array, ...]:
            output = collective(operands, over, x)
            results = [output]
            if output.shape == x.shape:
                results.append(lax.select(count > 0, output, x))
            if output.shape == y.shape:
                results.append(operands.one_of(lambda: jnp.where(output > 0, output, y), lambda: output + y)())
            if operands.chance(0.3):
                results.append(lax.slice_in_dim(output, 0, 1, axis=operands.below(output.ndim)))
            return tuple(results)

        result = P(*spec) if operands.chance(0.7) else P(*(_spec(operands, layout, over)))
        specs = P(*spec), P(*other), P(*spec)
        if operands.chance(0.5):
            with contextlib.suppress(ValueError):
                return _run(local, over, specs, result, check_vma=True)(x, y, count)
        return _run(local, over, specs, result, check_vma=False)(x, y, count)

    return build


BUILDERS: dict[str, Builder] = {name: _sharded(collective) for name, collective in COLLECTIVES.items()}
