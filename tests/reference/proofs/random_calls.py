"""Random steps with typed random keys and declared calls."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import random_steps
from jax import Array, lax
from jax.experimental import pallas as pl
from random_steps import LANES, ROWS, WIDTH, Choose
from zoo.program import Program, slot_map

from ir_passes import Lane, LaneContract, Opaque, Pool, Shared, SlotMap

GENERATORS = "threefry2x32", "rbg"
"""Keys of two and of four words; the second one draws the numbers of several keys together."""
POOL, SLOTS, LENGTH = Pool("p"), SlotMap("p", ROWS), Lane(role="length")
CONTRACT = LaneContract(
    inputs=(Shared(), Lane(), POOL, Lane(), LENGTH, POOL, SLOTS),
    outputs=(Lane(), Shared()),
    opaque={
        "mixed_row": Opaque((Lane(), Lane()), (Lane(),)),
        "row_and_sum": Opaque((Lane(), Shared()), (Lane(), Lane())),
        "take_rows": Opaque((POOL, SLOTS), (Lane(),)),
        "put_rows": Opaque((POOL, SLOTS, Lane()), (POOL,)),
        "put_real_rows": Opaque((POOL, SLOTS, Lane(), LENGTH), (POOL,)),
    },
)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw words of shared, per-lane and pooled keys."""
    shared, local, pooled = (rng.integers(0, 2**32, (*lead, 4), dtype=np.uint32) for lead in ((), (LANES,), (ROWS,)))
    _, _, x, lengths, pool, _, _ = random_steps.draw(rng)
    return shared, local, pooled, x, lengths, pool, slot_map(rng, lanes=LANES, slots=len(pool))


def mixed_row(x: Any, y: Any, out: Any) -> None:
    out[...] = x[...] * 2.0 + y[...]


def row_and_sum(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(x) * 3, np.asarray(x).sum(1) + np.asarray(w, np.float32).sum()


def take_rows(pool: np.ndarray, slots: np.ndarray) -> np.ndarray:
    return np.asarray(pool)[slots]


def put_rows(pool: np.ndarray, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
    pool = np.array(pool)
    pool[slots] = rows
    return pool


def put_real_rows(pool: np.ndarray, slots: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    pool, real = np.array(pool), np.asarray(lengths) > 0
    pool[np.asarray(slots)[real]] = np.asarray(rows)[real]
    return pool


def is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _of_keys(rng: Choose, keys: Array, numbers: Array, slots: Array) -> Array:
    """Keys of keys, or samples from them."""
    flat = keys.reshape(-1)
    each: Callable[[Callable[..., Array]], Array] = lambda of: jax.vmap(of)(flat).reshape(keys.shape)  # noqa: E731
    ways: tuple[Callable[[], Array], ...] = (
        lambda: each(lambda key: jax.random.split(key)[1]),
        lambda: each(lambda key: jax.random.fold_in(key, 3)),
        lambda: jax.vmap(jax.random.fold_in)(keys, numbers),
        lambda: jax.vmap(jax.random.split)(keys)[:, int(rng.integers(2))],
        lambda: jax.vmap(lambda key: jax.random.split(key, 3))(keys).T[1],
        lambda: jax.random.split(keys.reshape(-1)[int(rng.integers(keys.size))], LANES),
        lambda: keys[slots],
        lambda: keys.at[slots].set(keys[: len(slots)], mode="drop"),
        lambda: keys[::-1],
        lambda: jnp.roll(keys, 1),
        lambda: keys.reshape(1, -1).T[:, 0],
        lambda: jnp.where(numbers > 0, keys, keys[0]),
        lambda: jnp.concatenate([keys[1:], keys[:1]]),
        lambda: jnp.broadcast_to(keys.reshape(-1)[:1], (LANES,)),
        lambda: lax.scan(lambda item, _: (jax.vmap(jax.random.split)(item)[:, 0], None), keys, None, length=2)[0],
        lambda: lax.dynamic_index_in_dim(keys, numbers[0] % len(keys), keepdims=True),
        lambda: lax.cond(numbers[0] > 0, lambda item: item[::-1], lambda item: item, keys),
    )
    return ways[rng.integers(len(ways))]()


def _drawn(rng: Choose, keys: Array) -> Array:
    """Numbers drawn from keys, or the words of keys."""
    ways: tuple[Callable[[], Array], ...] = (
        lambda: jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(keys.reshape(-1)),
        lambda: jax.vmap(lambda key: jax.random.uniform(key, (WIDTH,)))(keys.reshape(-1)[:LANES]),
        lambda: jax.random.uniform(keys.reshape(-1)[int(rng.integers(keys.size))], (LANES, WIDTH)),
        lambda: jax.random.key_data(keys).astype(jnp.int32)[..., :2],
        lambda: jax.vmap(lambda key: jax.random.categorical(key, jnp.zeros(WIDTH)))(keys.reshape(-1)),
    )
    return ways[rng.integers(len(ways))]()


def _called(rng: Choose, rows: Array, other: Array, w: Array, pool: Array, slots: Array, array: Array) -> list[Array]:
    """Results of a declared call, sometimes with undeclared operands."""
    slots = slots if rng.random() < 0.9 else slots[::-1]
    like = jax.ShapeDtypeStruct(rows.shape, jnp.float32)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: pl.pallas_call(mixed_row, out_shape=like, interpret=True)(rows, other),
        lambda: pl.pallas_call(mixed_row, out_shape=like, interpret=True)(other, rows),
        lambda: jax.pure_callback(row_and_sum, (like, jax.ShapeDtypeStruct(like.shape[:1], jnp.float32)), rows, w),
        lambda: jax.pure_callback(take_rows, like, pool, slots),
        lambda: jax.pure_callback(put_rows, pool, pool, slots, rows),
        lambda: jax.pure_callback(put_real_rows, pool, pool, slots, rows, array),
    )
    return jax.tree.leaves(ways[rng.integers(len(ways))]())


def random_step(seed: int, count: int) -> Callable[..., tuple[Array, list[Array]]]:
    """A step of `count` operations; those that do not fit their operands are left out."""
    generator = GENERATORS[seed % len(GENERATORS)]
    words = {"threefry2x32": 2, "rbg": 4}[generator]

    def step(shared, local, pooled, x, lengths, pool, slots) -> Any:
        rng = np.random.default_rng(seed)
        item, each, rows = (jax.random.wrap_key_data(e[..., :words], impl=generator) for e in (shared, local, pooled))
        keys, table = [jax.random.split(item, LANES), rows, rows[slots], each, each], [x, x, pool[slots], lengths]
        pools = [pool]

        def pick(fits: Callable[[Array], bool]) -> Array:
            fitting = [value for value in table if fits(value)]
            return fitting[-1 - min(int(rng.exponential(3)), len(fitting) - 1)]

        of_lanes = lambda: pick(lambda v: v.shape == (LANES, WIDTH) and v.dtype == jnp.float32)
        for _ in range(count):
            key, kind = keys[-1 - min(int(rng.exponential(2)), len(keys) - 1)], rng.random()
            with contextlib.suppress(TypeError, ValueError, IndexError, StopIteration):
                if kind < 0.3:
                    new = [_of_keys(rng, key, lengths, slots)]
                elif kind < 0.55:
                    new = [_drawn(rng, key)]
                elif kind < 0.8:
                    called = of_lanes(), of_lanes(), of_lanes() if rng.random() < 0.2 else shared
                    new = _called(rng, *called, pools[rng.integers(len(pools))], slots, lengths)
                else:
                    new = [random_steps.ANY[rng.integers(len(random_steps.ANY))](rng, pick(lambda v: v.ndim >= 1))]
                for value in new:
                    if is_key(value):
                        keys += [value] if 0 < value.size <= 3 * LANES else []
                    elif value.ndim <= 4 and 0 < value.size <= 400:
                        (pools if value.shape == pool.shape else table).append(value)
        return x, [*table, *pools[1:], *(jax.random.key_data(key) for key in keys[5:])]

    return step


def random_calls(seed: int, count: int = 10) -> Program:
    """Return a step that returns all its values, with its contract."""
    return Program(f"random calls {seed}", random_step(seed, count), CONTRACT, draw)
