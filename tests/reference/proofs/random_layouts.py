"""Random steps on packed tokens and paged pools, for the proof's claims."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import random_steps
from jax import Array, lax
from zoo.program import Program

from ir_passes import Lane, LaneContract, Packed, PageTable, Pool, Shared

LANES, TOKENS, PAGE, WIDE, WIDTH = 3, 7, 2, 2, 4
PAGES = LANES * WIDE + 3
CONTRACT = LaneContract(
    inputs=(
        Shared(), Packed(), Packed(), Packed(role="cu_seqlens"), Lane(), Lane(), Pool("p"), PageTable("p", PAGES),
        Packed(layout="keys"), Packed(role="cu_seqlens", layout="keys"),
    ),
    outputs=(Packed(), Shared()),
)  # fmt: skip
Choose = np.random.Generator
MET = Counter[tuple[str, bool]]()
"""Pattern, and whether a leak was planted in it -> number of times."""


def _choice(rng: Choose, pattern: str, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> Any:
    """Return a right form of a pattern, or one that reaches another lane."""
    planted = bool(rng.random() < 0.3)
    MET[pattern, planted] += 1
    return (wrong if planted else right)[rng.integers(len(wrong if planted else right))]


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw pages so that each lane may write all pages of its own."""
    lengths, keys = (
        1 + np.bincount(rng.integers(0, LANES + 1, TOKENS - LANES), minlength=LANES + 1)[:LANES] for _ in range(2)
    )
    return (
        rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
        rng.normal(size=(TOKENS, WIDTH)).astype(np.float32),
        rng.integers(0, PAGE * WIDE, TOKENS).astype(np.int32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        rng.normal(size=(LANES, WIDTH)).astype(np.float32),
        rng.integers(0, PAGE * WIDE, LANES).astype(np.int32),
        rng.normal(size=(PAGES, PAGE, WIDTH)).astype(np.float32),
        (1 + rng.permutation(PAGES - 1)[: LANES * WIDE]).reshape(LANES, WIDE).astype(np.int32),
        rng.normal(size=(TOKENS, WIDTH)).astype(np.float32),
        np.concatenate([[0], np.cumsum(keys)]).astype(np.int32),
    )


def _segment(rng: Choose, cu: Array) -> Array:
    """The lane of each token in some way, often a wrong one."""
    index = jnp.arange(TOKENS, dtype=jnp.int32)
    ends = _choice(rng, "ends", (cu[1:],), (cu[:-1], cu[1:] + 1, cu))
    way = rng.integers(7)
    if way == 0:
        return jnp.searchsorted(ends, index, side=("right", "left")[rng.integers(2)])
    if way == 1:
        return (index[:, None] >= ends[None, :]).sum(1)
    if way == 2:
        counted = _choice(rng, "counted ends", (ends,), (jnp.stack([ends, ends], 1), ends[:-1]))
        return jnp.cumsum(jnp.zeros(TOKENS, jnp.int32).at[counted].add(1))
    if way == 3:
        return jnp.repeat(jnp.arange(LANES), jnp.diff(cu), total_repeat_length=TOKENS)
    if way == 5:
        ids, count, start = jnp.searchsorted(cu[1:], index, side="right"), int(rng.integers(3)), int(rng.integers(3))
        filled = jnp.concatenate([jnp.full(count, rng.choice([-1, LANES + 2]), jnp.int32), ids[start:]])
        return filled[int(rng.integers(3)) :][:TOKENS]
    if way == 4:
        real = _choice(rng, "padding", (index < cu[-1],), (index < cu[-1] - 1, index <= cu[-1], index >= cu[-1]))
        return jnp.where(real, jnp.searchsorted(cu[1:], index, side="right"), int(rng.integers(LANES + 1)))
    return jnp.minimum(jnp.searchsorted(cu[1:], index, side="right"), rng.integers(1, LANES + 1))


def _by_token(rng: Choose, x: Array, segment: Array) -> Array:
    """Something of lanes, for each token."""
    way = rng.integers(4)
    if way == 0:
        return x[segment]
    if way == 1:
        return x.at[segment].get(mode="fill", fill_value=int(rng.choice([-1, PAGES, 2**31 - 1])))
    if way == 2:
        return x.at[segment].get(mode="clip")
    return jnp.take(x, segment, axis=0)


def _by_lane(rng: Choose, x: Array, segment: Array, cu: Array) -> Array:
    """Something of tokens, for each lane."""
    way = rng.integers(6)
    zeros = jnp.zeros((LANES + int(rng.integers(2)), *x.shape[1:]), x.dtype)
    if way == 0:
        return jax.ops.segment_sum(x, segment, len(zeros))
    if way == 1:
        real = (jnp.arange(TOKENS) < cu[-1]).reshape(-1, *[1] * (x.ndim - 1))
        x = jnp.where(real, x, 0) if rng.random() < 0.5 else x
        rows = _choice(rng, "all lanes", (zeros,), (zeros[: LANES - 1],))
        sums = rows.at[segment].add(x, mode=("drop", "clip")[rng.integers(2)])
        return jnp.concatenate([sums, zeros])[:LANES]
    if way == 2:
        return zeros.at[segment].max(x, mode="drop")
    if way == 3:
        return zeros.at[segment].set(x)[:LANES]
    first = _choice(rng, "all tokens", (x,), (x[:-2],))
    return first.at[(cu[1:] - 1, cu[:-1], cu[1:], cu[1:] - 2)[rng.integers(4)]].get(mode="clip")


def _attention(rng: Choose, x: Array, v: Array, array: Array, other: Array) -> Array:
    """Attention with masks of several kinds, right and wrong ones."""
    masks = array[:, None] == other[None, :], array[:, None] == array[None, :]
    mask = _choice(rng, "attention", masks, (array[:, None] <= other[None, :],))
    if rng.random() < 0.5:
        mask = mask & (jnp.arange(TOKENS)[:, None] >= jnp.arange(TOKENS)[None, :])
    if rng.random() < 0.1:
        mask = mask | mask.T
    scores = jnp.where(mask, x @ x.T, (-jnp.inf, -jnp.inf, 0.0, -1.0)[rng.integers(4)])
    weights = (lambda s: jax.nn.softmax(s, axis=-1), jnp.exp, lambda s: s)[rng.integers(3)](scores)
    if rng.random() < 0.7:
        limits = jnp.where(jnp.isfinite(v), v, 0.0), lax.clamp(-2.0, v, 2.0), lax.clamp(v, jnp.ones_like(v), 2.0)
        v = _choice(rng, "finite", limits, (lax.clamp(0.0, jnp.ones_like(v), v), jnp.minimum(v, 2.0), v))
        v = jnp.where(v != v, 0.0, v)
    return (weights @ v, weights.sum(1), weights.max(0), weights.T @ v)[min(rng.integers(6), 3)]


def _scanned(rng: Choose, x: Array, states: Array, segment: Array) -> Array:
    """A loop over tokens that reads and writes the states of lanes."""
    mode = _choice(rng, "states of lanes", ("drop",), ("clip",))

    def token(carry: Array, item: Any) -> Any:
        x, lane = item
        new = jnp.tanh(carry[lane] + x)
        return carry.at[lane].set(new, mode=mode), new

    states, y = lax.scan(token, states, (x, segment))
    return y if rng.random() < 0.5 else states


def _page(rng: Choose, table: Array, position: Array, lane: Array | None) -> Array:
    """Page table entries and derived rows, guards and choices."""
    index = _choice(rng, "pages", (position // PAGE,), (position % (WIDE + 1),))
    if lane is not None:
        page = table[lane, index] if rng.random() < 0.4 else table.at[lane, index].get(mode="fill", fill_value=PAGES)
        if rng.random() < 0.4:
            page = jnp.where(lane < LANES, page, PAGES)
    else:
        ways = (
            lambda: jnp.take_along_axis(table, index[:, None], axis=1)[:, 0],
            lambda: table[jnp.arange(LANES), index],
            lambda: jnp.where(index == 0, table[:, 0], table[:, 1]),
            lambda: jnp.where(index > 0, table[:, 1], (PAGES, 0, -1)[rng.integers(3)]),
            lambda: table.reshape(-1)[: LANES * WIDE : WIDE],
        )
        page = ways[rng.integers(5)]()
    if rng.random() < 0.3:
        page = page + int(rng.integers(-1, 2))
    if rng.random() < 0.2:
        page = jnp.where(position > 1, page, page + int(rng.choice([PAGES - 1, PAGES, PAGES + 3])))
    return page


def _paged(rng: Choose, pool: Array, page: Array, position: Array, new: Array) -> tuple[Array, Array]:
    """A pool written at page and offset, flat or not, and read there."""
    place = _choice(rng, "places of a page", (position % PAGE,), (position, position % (PAGE + 1)))
    mode = ("drop", "drop", "clip")[rng.integers(3)]
    if rng.random() < 0.5:
        pool = pool.at[page, place].set(new, mode=mode)
        return pool, pool[page]
    row = page * _choice(rng, "flat pages", (PAGE,), (PAGE + 1,)) + place
    flat = pool.reshape(PAGES * PAGE, WIDTH).at[row].add(new, mode=mode)
    return flat.reshape(pool.shape), flat.at[row].get(mode="fill", fill_value=0.0)


def _tiles(rng: Choose, x: Array, cu: Array) -> Array:
    """The tokens of each lane in rows, often with a wrong place or mask, and sometimes back in line."""
    width = int(rng.integers(2, 6))
    counts = jnp.arange(width)[None]
    begin, end, length = cu[:-1, None], cu[1:, None], jnp.diff(cu)[:, None]
    place = _choice(rng, "places of tiles", (begin + counts, end - 1 - counts), (begin + counts + 1, begin - counts))
    masks = (counts < length, counts < length, (place < end) & (counts < length))
    mask = _choice(rng, "masks of tiles", masks, (counts <= length, place <= end, place >= begin))
    index = (
        jnp.clip(place, 0, TOKENS - 1) if rng.random() < 0.5 else jnp.where(mask, place, TOKENS - (rng.random() < 0.1))
    )
    fill = (lambda: x.at[index].get(mode="fill", fill_value=0.0), lambda: x[jnp.minimum(index, TOKENS - 1)])
    rows = fill[rng.integers(2)]()
    rows = jnp.where(mask[..., None], rows, 0.0) if rng.random() < 0.7 else rows
    if rng.random() < 0.4:
        target = jnp.where(mask, place, TOKENS)
        return jnp.zeros_like(x).at[target].set(jnp.cumsum(rows, 1), mode="drop")
    return rows if rng.random() < 0.5 else rows.sum(1)


def _lane_loop(rng: Choose, x: Array, states: Array, cu: Array) -> Array:
    """A loop over lanes with a loop over tokens, often with a wrong bound or token."""
    parts = "first tokens", "last tokens", "tokens of loops"
    tokens = _choice(rng, "tokens of a loop", (x,), (x[:-2],))
    low, high, next_token = (_choice(rng, part, (0,), (1,)) for part in parts)

    def lane(i: Array, carry: Any) -> Any:
        states, out = carry

        def token(t: Array, carry: Any) -> Any:
            state, out = carry
            state = 0.5 * state + tokens[jnp.minimum(t + next_token, TOKENS - 1) if next_token else t]
            return state, out.at[t].set(state)

        first = jnp.maximum(cu[i] - low, 0) if low else cu[i]
        last = jnp.minimum(cu[i + 1] + high, TOKENS) if high else cu[i + 1]
        state, out = lax.fori_loop(first, last, token, (states[i], out))
        return states.at[i].set(state), out

    results = lax.fori_loop(0, LANES, lane, (states, jnp.zeros_like(x)))
    return results[rng.integers(2)]


def _shifted(rng: Choose, x: Array, cu: Array, segment: Array) -> Array:
    """Tokens at a distance under a mask by a bound of the token's lane, often of another bound or distance."""
    by, index = int(rng.integers(1, 3)), jnp.arange(TOKENS)
    distance = by + _choice(rng, "distances", (0, 1), (-1,))
    lane = jnp.minimum(segment, LANES - 1)
    start, stop = cu[lane], cu[lane + 1]
    if rng.random() < 0.4:
        low, high = _choice(rng, "limits", ((start, stop - 1),), ((start - 1, stop - 1), (start, stop), (stop, start)))
        ways = jnp.maximum(index - by, low), jnp.minimum(index + by, high), jnp.clip(index - by + 1, low, high)
        return x[ways[rng.integers(3)]]
    if rng.random() < 0.5:
        mask = (index - start >= distance, index >= start + distance, index - distance > start - 1)[rng.integers(3)]
        return jnp.where(mask[:, None], jnp.pad(x, ((by, 0), (0, 0)))[:TOKENS], 0.0)
    mask = (stop - index > distance, index + distance < stop, index + distance <= stop)[min(rng.integers(5), 2)]
    return jnp.where(mask[:, None], jnp.pad(x, ((0, by), (0, 0)))[by:], 0.0)


def _between(rng: Choose, x: Array, cu: Array, segment: Array) -> Array:
    """All tokens for each lane or token, under a mask by two bounds, often a wrong one."""
    index, lane = jnp.arange(TOKENS), jnp.minimum(segment, LANES - 1)
    start, stop = ((cu[:-1], cu[1:]), (cu[lane], cu[lane + 1]))[rng.integers(2)]
    one_more, one_less = (_choice(rng, f"{name} bounds", (0,), (1,)) for name in ("upper", "lower"))
    ends = (index[None] < stop[:, None] + one_more, index[None] <= index[: len(stop), None])[rng.random() < 0.2]
    mask = (index[None] >= start[:, None] - one_less) & ends
    return jnp.where(mask[..., None], x[None], 0.0).sum(1)


def _begun(rng: Choose, x: Array, cu: Array, segment: Array) -> Array:
    """A recurrence that begins anew at starts of lanes, often at wrong ones."""
    index, some = jnp.arange(TOKENS), _choice(rng, "starts", (cu[:-1], cu), (cu[1:], cu[:-1] + 1))
    rise = jnp.diff(segment, prepend=_choice(rng, "before ids", (-1,), (LANES + 2,)))
    marks = jnp.isin(index, some), (index[:, None] == some[None]).any(1), jnp.zeros(TOKENS, bool).at[some].set(True)
    risen = _choice(rng, "rises", (rise > 0, rise != 0, rise >= 1), (rise > 1, rise < 0, rise == 0))
    first = (*marks, risen, risen)[rng.integers(5)]

    def token(state: Array, now: Any) -> Any:
        new = jnp.tanh(jnp.where(now[1], 0.0, state) + now[0])
        return new, new

    return lax.scan(token, jnp.zeros(WIDTH), (x, first))[1]


def random_step(seed: int, count: int) -> Callable[..., tuple[Array, list[Array]]]:
    """Return a step of at most `count` operations."""

    def step(w, x, where, cu_queries, rows, local, pool, table, keys, cu_keys) -> Any:
        rng = np.random.default_rng(seed)
        right, of_keys = (jnp.searchsorted(cu[1:], jnp.arange(TOKENS), side="right") for cu in (cu_queries, cu_keys))
        known_value, segments, pools = [w, keys, x, rows, right, where, local, table], [right, right, of_keys], [pool]

        def pick(fits: Callable[[Array], bool]) -> Array:
            fitting = [value for value in known_value if fits(value)]
            return fitting[-1 - min(int(rng.exponential(3)), len(fitting) - 1)]

        of = lambda length: pick(lambda v: v.shape == (length, WIDTH) and v.dtype == jnp.float32)
        for _ in range(count):
            kind, segment = rng.random(), segments[rng.integers(len(segments))]
            cu = cu_queries if rng.random() < 0.75 else cu_keys
            with contextlib.suppress(TypeError, ValueError, IndexError, StopIteration):
                if kind < 0.2:
                    new = random_steps.ANY[rng.integers(len(random_steps.ANY))](rng, pick(lambda v: v.ndim >= 1))
                elif kind < 0.3:
                    value = pick(lambda v: v.ndim >= 1)
                    other = pick(lambda v, value=value: (v.shape, v.dtype) == (value.shape, value.dtype))
                    new = random_steps.ALIKE[rng.integers(len(random_steps.ALIKE))](rng, value, other)
                elif kind < 0.36:
                    new = _segment(rng, cu)
                    segments.append(new)
                elif kind < 0.42:
                    make = (_shifted, _between)[rng.integers(2)]
                    new = make(rng, of(TOKENS), cu, segment)
                elif kind < 0.52:
                    new = _by_token(rng, pick(lambda v: len(v) == LANES), segment)
                elif kind < 0.62:
                    new = _by_lane(rng, pick(lambda v: len(v) == TOKENS), segment, cu)
                elif kind < 0.74:
                    new = _attention(rng, of(TOKENS), of(TOKENS), segment, segments[rng.integers(len(segments))])
                elif kind < 0.78:
                    new = _scanned(rng, of(TOKENS), of(LANES), segment)
                elif kind < 0.83:
                    new = _tiles(rng, of(TOKENS), cu)
                elif kind < 0.86:
                    new = _lane_loop(rng, of(TOKENS), of(LANES), cu)
                elif kind < 0.88:
                    new = _begun(rng, of(TOKENS), cu, segment)
                else:
                    lane = segment if rng.random() < 0.5 else None
                    position = local if lane is None else where
                    page = _page(rng, table, position, lane)
                    pool, new = _paged(rng, pools[-1], page, position, of(LANES if lane is None else TOKENS))
                    known_value.append(page)
                    pools.append(pool)
                    known_value.append(pool[table])
                if new.ndim <= 4 and 0 < new.size <= 400:
                    known_value.append(new)
        return x, known_value

    return step


def random_layout(seed: int, count: int = 14) -> Program:
    """Return a step of random operations."""
    return Program(f"random layout {seed}", random_step(seed, count), CONTRACT, draw)
