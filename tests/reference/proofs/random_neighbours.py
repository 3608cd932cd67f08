"""Random steps that move tokens, masks and ids, for claims about neighbours."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import Program

from ir_passes import LaneContract, Packed, Shared

LANES, TOKENS, WIDTH, LONGEST = 3, 7, 2, 16
CONTRACT = LaneContract((Packed(), Packed(role="cu_seqlens")), (Packed(), Shared()))
OUTSIDE = (-1, LANES + 2, LANES, 0)
COMPARISONS = (
    jnp.equal,
    jnp.not_equal,
    jnp.less_equal,
    jnp.less,
    lambda x, y: x - y > 0,
    lambda x, y: x - y <= 0,
    lambda x, y: x - y >= 1,
)
COMBINED = jnp.logical_and, jnp.logical_or, jnp.logical_xor, lambda x, y: x & ~y
Move = Callable[[Array, Any], Array]


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = 1 + np.bincount(rng.integers(0, LANES + 1, TOKENS - LANES), minlength=LANES + 1)[:LANES]
    return rng.normal(size=(TOKENS, WIDTH)).astype(np.float32), np.r_[0, np.cumsum(lengths)].astype(np.int32)


def _move(rng: np.random.Generator, length: int) -> Move:
    """Return a function of an array and a filler that moves rows along the first axis."""
    by, begin = int(rng.integers(1, 3)), int(rng.integers(0, min(3, length)))
    end, stride, gap = int(rng.integers(begin + 1, length + 1)), int(rng.choice([1, 1, 2])), int(rng.choice([0, 0, 1]))
    filled = lambda x, filler: jnp.full((by, *x.shape[1:]), filler, x.dtype)
    moves: tuple[Move, ...] = (
        lambda x, _: lax.slice_in_dim(x, begin, end, stride),
        lambda x, filler: lax.pad(x, jnp.asarray(filler, x.dtype), [(by, begin, gap), *[(0, 0, 0)] * (x.ndim - 1)]),
        lambda x, _: jnp.flip(x, 0),
        lambda x, _: jnp.roll(x, by - 2 * begin, 0),
        lambda x, filler: jnp.concatenate([filled(x, filler), x])[:length],
        lambda x, filler: jnp.concatenate([x[by:], filled(x, filler)]),
        lambda x, _: x[jnp.clip(jnp.arange(length) + by - 2 * begin, 0, length - 1)],
    )
    return moves[rng.integers(len(moves))]


def _scanned(rng: np.random.Generator, x: Array, first: Array) -> Array:
    """Return a recurrence that begins anew at true elements."""
    reverse = bool(rng.integers(2))
    if rng.random() < 0.5:

        def token(state: Array, now: Any) -> Any:
            state = jnp.where(now[1], 0.0, state) + now[0]
            return state, state

        return lax.scan(token, jnp.zeros(WIDTH), (x, first), reverse=reverse)[1]
    combine = lambda left, right: (left[0] | right[0], jnp.where(right[0], right[1], left[1] + right[1]))
    return lax.associative_scan(combine, (first[:, None], x), reverse=reverse)[1]


def _with_the_last(x: Array, numbers: Array, first: int, reverse: bool) -> Array:
    """Return a recurrence that continues while a number equals the last one."""

    def token(carry: Any, now: Any) -> Any:
        state, last = carry
        state = jnp.where(now[1] == last, state, 0.0) + now[0]
        return (state, now[1]), state

    begin = jnp.zeros(WIDTH), jnp.asarray(first, numbers.dtype)
    return lax.scan(token, begin, (x, numbers), reverse=reverse)[1]


def random_step(seed: int, count: int) -> Callable[..., tuple[Array, list[Array]]]:
    """Return a step of at most `count` operations."""

    def step(x: Array, cu: Array) -> Any:
        rng, index = np.random.default_rng(seed), jnp.arange(TOKENS)
        ids = jnp.searchsorted(cu[1:], index, side="right")
        lane = jnp.minimum(ids, LANES - 1)
        start, stop = cu[lane], cu[lane + 1]
        values, numbers = [x, 2 * x], [ids, index, start, stop, index - start, lane, ids]
        masks = [index == start, index - start >= 2, stop - index > 1, index < cu[-1], jnp.isin(index, cu[:-1])]

        def pick(arrays: list[Array], length: int | None = None) -> Array:
            fitting = [array for array in arrays if length in (None, array.shape[0])]
            return fitting[-1 - min(int(rng.exponential(3)), len(fitting) - 1)]

        for _ in range(count):
            kind, filler = rng.random(), int(rng.choice(OUTSIDE))
            with contextlib.suppress(TypeError, ValueError, IndexError):
                value = pick(values)
                length, move = value.shape[0], _move(rng, value.shape[0])
                if kind < 0.3:
                    values.append(move(value, 0.0))
                    masks.append(move(pick(masks, length), bool(rng.integers(2))))
                    numbers.append(move(pick(numbers, length), filler))
                elif kind < 0.5:
                    arrays, new = ((values, 0.0), (masks, False), (numbers, filler))[rng.integers(3)]
                    arrays.append(move(pick(arrays, length), new))
                elif kind < 0.6:
                    compare = COMPARISONS[rng.integers(len(COMPARISONS))]
                    masks.append(compare(pick(numbers, length), pick(numbers, length)))
                elif kind < 0.66:
                    masks.append(COMBINED[rng.integers(len(COMBINED))](pick(masks, length), pick(masks, length)))
                elif kind < 0.74:
                    values.append((jnp.add, jnp.multiply)[rng.integers(2)](value, pick(values, length)))
                elif kind < 0.92:
                    other = pick(values, length) if rng.random() < 0.6 else jnp.zeros_like(value)
                    values.append(jnp.where(pick(masks, length)[:, None], value, other))
                elif kind < 0.95:
                    pair = [value, pick(values, length)]
                    values.append(jnp.stack(pair, 1).reshape(-1, WIDTH) if filler else jnp.concatenate(pair))
                elif kind < 0.975:
                    values.append(_scanned(rng, value, pick(masks, length)))
                else:
                    values.append(_with_the_last(value, pick(numbers, length), filler, bool(rng.integers(4) == 0)))
            values = [array for array in values if 0 < array.shape[0] <= LONGEST]
        return x, [*values, *masks, *numbers]

    return step


def random_neighbours(seed: int, count: int = 14) -> Program:
    """Return a step of random moves."""
    return Program(f"random neighbours {seed}", random_step(seed, count), CONTRACT, draw)
