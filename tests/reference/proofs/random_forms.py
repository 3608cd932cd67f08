"""Random steps with further contract entries: second rows, masks, counts, omitted arrays."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import random_steps
from jax import Array
from random_steps import LANES, WIDTH, Choose
from zoo.program import Program

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap, Unspecified

ROWS = 2 * LANES + 1
CONTRACT = LaneContract(
    inputs=(
        Shared(), Lane(), Lane(role="length"), Lane(role="active"), Shared(role="active_count"), Unspecified(),
        Pool("p"), SlotMap("p", ROWS), SlotMap("p", ROWS, disjoint=True), Pool("r"),
    ),
    outputs=(Lane(), Shared()),
)  # fmt: skip


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    """The second row of a lane is no lane's first one; some lanes lack one."""
    w, _, x, local, _, _, rows = random_steps.draw(rng)
    slots = 1 + rng.permutation(2 * LANES)
    second = np.where(rng.random(LANES) < 0.8, slots[LANES:], 0)
    pool = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    left_out = rng.normal(size=(LANES, WIDTH)).astype(np.float32)
    active, count = rng.random(LANES) < 0.6, np.int32(rng.integers(-1, LANES + 2))
    maps = slots[:LANES].astype(np.int32), second.astype(np.int32)
    return w, x, local, active, count, left_out, pool, *maps, rows


def _busy(rng: Choose, array: Array, active: Array, count: Array) -> Array:
    """Mask of active lanes, from one or two of three inputs, often wrong."""
    lane = jnp.arange(LANES, dtype=jnp.int32)
    ways = (
        lambda: active, lambda: active, lambda: lane < count, lambda: lane < count, lambda: array > 0,
        lambda: active & (array > 0), lambda: active | (lane < count), lambda: lane <= count, lambda: active[::-1],
        lambda: count > lane, lambda: ~active, lambda: jnp.roll(array, 1) > 0, lambda: active & (lane < count),
    )  # fmt: skip
    return ways[rng.integers(len(ways))]()


def _rows(rng: Choose, pool: Array, maps: tuple[Array, Array], busy: Array, new: Array) -> Array:
    """A pool with first, second or both rows written, guarded or not."""
    first, second = maps
    old = pool[(first, second)[rng.integers(2)]]
    new = (new, old, new + old, jnp.where(busy[:, None], new, old))[rng.integers(4)]
    for row in ((first,), (second,), (first, second), (second, first))[rng.integers(4)]:
        way = rng.integers(5)
        if way == 0:
            row = jnp.where(busy, row, len(pool))
        elif way == 1:
            row = jnp.where(busy, row, row + len(pool))
        elif way == 2:
            row = jnp.where(busy, row, (0, -1, 1)[rng.integers(3)])
        pool = pool.at[row].set(new, mode=("drop", "drop", "clip")[rng.integers(3)])
    return pool


def random_step(seed: int, count: int) -> Callable[..., tuple[Array, list[Array]]]:
    """A step of `count` operations; those that do not fit their operands are left out."""

    def step(w, x, local, active, many_value, left_out, pool, first, second, rows) -> Any:
        rng = np.random.default_rng(seed)
        table, pools, masks = (
            [w, x, local, rows, rows, x],
            [pool],
            [active, jnp.arange(LANES, dtype=jnp.int32) < many_value],
        )
        table += [left_out] if rng.random() < 0.2 else []

        def pick(fits: Callable[[Array], bool]) -> Array:
            fitting = [value for value in table if fits(value)]
            return fitting[-1 - min(int(rng.exponential(3)), len(fitting) - 1)]

        of_lanes = lambda: pick(lambda v: v.shape == (LANES, WIDTH) and v.dtype == jnp.float32)
        for _ in range(count):
            kind, busy = rng.random(), masks[-1 - min(int(rng.exponential(2)), len(masks) - 1)]
            with contextlib.suppress(TypeError, ValueError, IndexError, StopIteration):
                if kind < 0.25:
                    new = random_steps.ANY[rng.integers(len(random_steps.ANY))](rng, pick(lambda v: v.ndim >= 1))
                elif kind < 0.4:
                    value = pick(lambda v: v.ndim >= 1)
                    other = pick(lambda v, value=value: (v.shape, v.dtype) == (value.shape, value.dtype))
                    new = random_steps.ALIKE[rng.integers(len(random_steps.ALIKE))](rng, value, other)
                elif kind < 0.55:
                    masks.append(_busy(rng, local, active, many_value))
                    new = masks[-1].astype(jnp.int32)
                elif kind < 0.8:
                    new = jnp.where(busy[:, None], of_lanes(), (rows, of_lanes())[rng.integers(2)])
                else:
                    pools.append(_rows(rng, pools[rng.integers(len(pools))], (first, second), busy, of_lanes()))
                    table.append(pools[-1])
                    picked = jnp.where(second > 0, second, ROWS)
                    new = (
                        pools[-1].at[(first, second, picked, picked)[rng.integers(4)]].get(mode="fill", fill_value=0.0)
                    )
                if new.ndim <= 4 and 0 < new.size <= 400:
                    table.append(new)
        return x, table

    return step


def random_form(seed: int, count: int = 14) -> Program:
    """Return a step that returns all its values, with its contract."""
    return Program(f"random form {seed}", random_step(seed, count), CONTRACT, draw)
