"""Random steps on lanes, pools and shared arrays, for the proof's claims."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import Program, slot_map

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

LANES, ROWS, WIDTH = 3, 6, 4
CONTRACT = LaneContract(
    inputs=(Shared(), Shared(), Lane(), Lane(role="length"), Pool("p"), SlotMap("p", ROWS), Pool("r")),
    outputs=(Lane(), Shared()),
)
Choose = np.random.Generator


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return (
        rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
        rng.integers(0, LANES, 5).astype(np.int32),
        rng.normal(size=(LANES, WIDTH)).astype(np.float32),
        rng.integers(0, WIDTH, LANES).astype(np.int32),
        rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        slot_map(rng, lanes=LANES, slots=ROWS),
        rng.normal(size=(LANES, WIDTH)).astype(np.float32),
    )


def _axis(rng: Choose, x: Array) -> int:
    return int(rng.integers(x.ndim))


def _merge(rng: Choose, x: Array) -> Array:
    number = int(rng.integers(x.ndim - 1))
    return x.reshape((*x.shape[:number], x.shape[number] * x.shape[number + 1], *x.shape[number + 2 :]))


def _split(rng: Choose, x: Array) -> Array:
    index = _axis(rng, x)
    part = next(part for part in (2, 3, 5) if x.shape[index] % part == 0 and x.shape[index] > part)
    sizes = (part, x.shape[index] // part) if rng.random() < 0.5 else (x.shape[index] // part, part)
    return x.reshape((*x.shape[:index], *sizes, *x.shape[index + 1 :]))


def _transposing(rng: Choose, x: Array) -> Array:
    """A transposing reshape: Fortran order in numpy, or `lax.reshape` dimensions."""
    sizes = [x.shape[k] for k in rng.permutation(x.ndim)]
    if rng.random() < 0.5:
        return x.reshape(sizes, order="F")
    return lax.reshape(x, sizes, dimensions=tuple(map(int, rng.permutation(x.ndim))))


def _slice(rng: Choose, x: Array) -> Array:
    index = _axis(rng, x)
    start = int(rng.integers(x.shape[index]))
    return lax.slice_in_dim(x, start, int(rng.integers(start, x.shape[index])) + 1, axis=index)


def _dot(rng: Choose, x: Array, y: Array) -> Array:
    a, b = _axis(rng, x), _axis(rng, y)
    batch = [(i, j) for i in range(x.ndim) for j in range(y.ndim) if i != a and j != b and x.shape[i] == y.shape[j]]
    chosen = [batch[rng.integers(len(batch))]] if batch and rng.random() < 0.5 else []
    numbers = (((a,), (b,)), (tuple(i for i, _ in chosen), tuple(j for _, j in chosen)))
    return lax.dot_general(x.astype(jnp.float32), y.astype(jnp.float32), numbers)


def _index(rng: Choose, x: Array, index: Array) -> Array:
    index = index % x.shape[0] if rng.random() < 0.5 else index
    return x.at[index].get(mode=("fill", "clip", None)[rng.integers(3)])


def _take(rng: Choose, x: Array, index: Array) -> Array:
    return jnp.take_along_axis(x, (index % x.shape[-1])[..., None], axis=-1, mode="clip")


def _write(rng: Choose, x: Array, index: Array, new: Array) -> Array:
    rows = x.at[index % x.shape[0]] if rng.random() < 0.5 else x.at[index]
    new = jnp.broadcast_to(new.reshape(-1)[:1], (*index.shape, *x.shape[1:])) if new.ndim != x.ndim else new
    return rows.add(new.astype(x.dtype)) if rng.random() < 0.3 else rows.set(new.astype(x.dtype))


def _dynamic(rng: Choose, x: Array, index: Array) -> Array:
    return lax.dynamic_index_in_dim(x, index.reshape(-1)[int(rng.integers(index.size))], _axis(rng, x))


def _scan(rng: Choose, x: Array) -> Array:
    carry, y = lax.scan(lambda c, row: (c + row, c * row), jnp.zeros_like(x[0]), x, reverse=bool(rng.integers(2)))
    return y if rng.random() < 0.7 else carry


def _branch(_: Choose, flag: Array, x: Array, y: Array) -> Array:
    return lax.cond(flag.reshape(-1)[0] > 0, lambda x, y: x, lambda x, y: y, x, y)


def _concatenate(rng: Choose, x: Array, y: Array) -> Array:
    return lax.concatenate([x, y], _axis(rng, x))


ANY: tuple[Callable[..., Array], ...] = (
    lambda rng, x: jnp.tanh(x.astype(jnp.float32)),
    lambda rng, x: -x,
    lambda rng, x: x.astype(jnp.int32),
    lambda rng, x: jnp.transpose(x, rng.permutation(x.ndim)),
    lambda rng, x: jnp.expand_dims(x, int(rng.integers(x.ndim + 1))),
    lambda rng, x: jnp.broadcast_to(x[None], (LANES, *x.shape)),
    lambda rng, x: x.sum(_axis(rng, x)),
    lambda rng, x: x.max(_axis(rng, x), keepdims=True) + 0 * x,
    lambda rng, x: jnp.cumsum(x, axis=_axis(rng, x)),
    lambda rng, x: jnp.sort(x, axis=_axis(rng, x)),
    lambda rng, x: jnp.argsort(x, axis=_axis(rng, x)),
    lambda rng, x: jnp.flip(x, _axis(rng, x)),
    lambda rng, x: jnp.roll(x, 1, _axis(rng, x)),
    lambda rng, x: lax.top_k(x, 2)[int(rng.integers(2))],
    lambda rng, x: jnp.argmax(x, axis=_axis(rng, x)),
    lambda rng, x: jnp.pad(x, [(0, 1)] + [(0, 0)] * (x.ndim - 1)),
    lambda rng, x: jnp.repeat(x, 2, axis=_axis(rng, x)),
    _merge,
    _split,
    _transposing,
    _slice,
    _scan,
)
ALIKE: tuple[Callable[..., Array], ...] = (
    lambda rng, x, y: x + y,
    lambda rng, x, y: x * y,
    lambda rng, x, y: jnp.where(x > y, x, y * 2),
    lambda rng, x, y: jnp.stack([x, y], axis=int(rng.integers(x.ndim + 1))),
    _concatenate,
)
INDEXED: tuple[Callable[..., Array], ...] = (_index, _take, _dynamic, lambda rng, x, i: x.reshape(-1)[i % x.size])


def _by_slots(rng: Choose, pool: Array, slots: Array, new: Array) -> Array:
    """A pool with rows written at slots in a usual way."""
    new = jnp.broadcast_to(new.reshape(-1)[: LANES * WIDTH].astype(pool.dtype).reshape(LANES, WIDTH), (LANES, WIDTH))
    way = rng.integers(6)
    if way == 5:
        places = slots[:, None] * WIDTH + jnp.arange(int(rng.integers(1, WIDTH + 2)), dtype=jnp.int32)[None]
        return pool.reshape(-1).at[places].set(new[:, :1]).reshape(pool.shape)
    if way == 0:
        return pool.at[slots].set(new, mode="drop")
    if way == 1:
        return pool.at[slots].add(new)
    if way == 2:
        return lax.dynamic_update_slice_in_dim(pool, new[:1], slots[1], 0)
    if way == 3:
        return lax.fori_loop(0, LANES, lambda i, pool: pool.at[slots[i]].set(new[i] + pool[slots[i]]), pool)
    return pool.at[slots, jnp.argmax(new, axis=1)].set(new[:, 0])


def _by_lane(rng: Choose, x: Array, array: Array) -> Array:
    """Each lane picks from, or writes into, its own row of [N, ...]."""
    way = rng.integers(4)
    if way == 0:
        return jax.vmap(lambda row, i: lax.dynamic_index_in_dim(row, i, 0))(x, array)
    if way == 1:
        return jax.vmap(lambda row, i: row.at[i].set(0))(x, array)
    if way == 2:
        return x.at[jnp.arange(len(array)), array].get(mode="fill")
    return jax.vmap(lambda row, i: lax.dynamic_update_slice_in_dim(row, row[:1], i, 0))(x, array)


def _sorted_rows(rng: Choose, x: Array, keys: Array) -> Array:
    """Rows in the order of integer keys, there and perhaps back."""
    order = jnp.argsort(keys)
    target = x[order]
    way = rng.integers(5)
    if way == 0:
        return target
    if way == 1:
        return jnp.zeros_like(target).at[order].set(target)
    inverse = jnp.argsort(order) if way == 2 else jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
    return target[inverse] if way < 4 else inverse + target[:, :1].astype(jnp.int32).sum(1)


def _looped(rng: Choose, x: Array) -> Array:
    """A loop over the first axis: sums, copies, or each row by itself."""
    way = rng.integers(4)
    if way == 0:
        return lax.fori_loop(0, len(x), lambda i, y: y.at[i].set(x[i] + 1), jnp.zeros_like(x))
    if way == 1:
        return lax.fori_loop(1, len(x), lambda i, y: y.at[i].add(y[i - 1]), x)
    if way == 2:
        return lax.map(lambda row: row * 2, x)
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (jnp.int32(0), x))[1]


def _alive(array: Array, rank: int, axis: int) -> Array:
    """Whether each lane has a length, along one axis of an array."""
    return jnp.expand_dims(array > 0, [d for d in range(rank) if d != axis])


def _kept(rng: Choose, array: Array, slots: Array, pool: Array, new: Array, old: Array) -> Array:
    """Keep idle lanes' rows in a usual way, sometimes wrongly.

    Args:
        own: lengths.
        slots: rows of the pool.
        pool: a version of the pool, or of the row pool.
        new, old: of one shape, lanes along some axis.
    """
    axes = [d for d, size in enumerate(new.shape) if size == LANES]
    alive = _alive(array, new.ndim, axes[int(rng.integers(len(axes)))])
    fresh = jnp.broadcast_to(new.reshape(-1)[: LANES * WIDTH].reshape(LANES, WIDTH), (LANES, WIDTH)).astype(pool.dtype)
    way = int(rng.integers(9))
    if way < 3:
        return jnp.where(alive, new, old)
    if way == 3:
        return pool.at[jnp.where(array > 0, slots, ROWS)].set(fresh, mode="drop")
    if way == 4:
        return pool.at[slots].set(jnp.where(_alive(array, 2, 0), fresh, pool[slots]))
    if way == 5:
        rows = jnp.where(array > 0, array % WIDTH, WIDTH)
        return new.at[jnp.arange(LANES), rows].set(1, mode="drop")
    if way == 6:
        part = new[..., : max(1, new.shape[-1] - 1)]
        return lax.dynamic_update_slice(new, jnp.where(_alive(array, new.ndim, 0), part * 2, part), [0] * new.ndim)
    if way == 7:
        count = rng.integers(1, 4)
        return lax.fori_loop(0, count, lambda i, x: jnp.where(i < array.reshape(alive.shape), x + new, x), old)
    target, result = lax.scan(lambda c, row: (c, jnp.where(array[0] > 0, row * 2, row)), 0, jnp.swapaxes(old, 0, -1))
    return jnp.swapaxes(result, 0, -1) + target


def random_step(seed: int, count: int, idle: bool = False) -> Callable[..., tuple[Array, list[Array]]]:
    """A step of `count` operations; those that do not fit their operands are left out.

    Args:
        seed: of all choices.
        count: operations.
        idle: whether lanes of length 0 are treated separately.
    """

    def step(w: Array, ids: Array, x: Array, array: Array, pool: Array, slots: Array, rows: Array) -> Any:
        rng = np.random.default_rng(seed)
        table = [w, ids, x, array, slots, rows, pool[slots], pool, jnp.arange(LANES, dtype=jnp.int32)]

        def pick(fits: Callable[[Array], bool]) -> Array:
            # recent ones more often, for long chains
            fitting = [value for value in table if fits(value)]
            return fitting[-1 - min(int(rng.exponential(4)), len(fitting) - 1)]

        integers = lambda: pick(lambda v: v.dtype == jnp.int32 and 1 <= v.ndim <= 2)
        for _ in range(count):
            value = pick(lambda v: v.ndim >= 1)
            kind = rng.random()
            with contextlib.suppress(TypeError, ValueError, IndexError, StopIteration):
                if kind < 0.45:
                    new = ANY[rng.integers(len(ANY))](rng, value)
                elif kind < 0.65:
                    other = pick(lambda v, value=value: (v.shape, v.dtype) == (value.shape, value.dtype))
                    new = ALIKE[rng.integers(len(ALIKE))](rng, value, other)
                elif kind < 0.85:
                    new = INDEXED[rng.integers(len(INDEXED))](rng, value, integers())
                elif kind < 0.88:
                    pools = [v for v in table if v.shape == (ROWS, WIDTH) and v.dtype == jnp.float32]
                    new = _by_slots(rng, pools[rng.integers(len(pools))], slots, value)
                    table.append(new[slots])
                elif kind < 0.90:
                    new = _by_lane(rng, pick(lambda v: v.ndim >= 2 and v.shape[0] == LANES), array % 2)
                elif kind < 0.92:
                    keys = pick(lambda v: v.dtype == jnp.int32 and v.ndim == 1)
                    new = _sorted_rows(rng, pick(lambda v, keys=keys: v.ndim == 2 and len(v) == len(keys)), keys)
                elif kind < 0.94:
                    new = _looped(rng, value)
                elif kind < 0.955:
                    new = _write(rng, value, integers(), pick(lambda v: v.ndim >= 1))
                elif kind < 0.975:
                    new = _dot(rng, value, pick(lambda v: v.ndim >= 1))
                else:
                    other = pick(lambda v, value=value: (v.shape, v.dtype) == (value.shape, value.dtype))
                    new = _branch(rng, integers(), value, other)
                if new.ndim <= 4 and 0 < new.size <= 400:
                    table.append(new)
            if idle and rng.random() < 0.5:
                value = pick(lambda v: LANES in v.shape)
                like = pick(lambda v, value=value: (v.shape, v.dtype) == (value.shape, value.dtype))
                full = pick(lambda v: v.shape == (ROWS, WIDTH) and v.dtype == jnp.float32)
                with contextlib.suppress(TypeError, ValueError, IndexError):
                    table.append(_kept(rng, array, slots, full, value, rows if like.shape == rows.shape else like))
        return x, table

    return step


def random_program(seed: int, count: int = 25, idle: bool = False) -> Program:
    """Return a step that returns all its values, with its contract."""
    return Program(f"random {seed}", random_step(seed, count, idle), CONTRACT, draw)
