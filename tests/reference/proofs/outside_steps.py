"""Steps in outsiders' style: packed tokens, lane loops, per-lane numerics, and leaking relatives.

Each step has its verdict by runs in which one lane was disturbed. More than 300 lines: a list.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes import Lane, LaneContract, Packed, PageTable, Pool, SlotMap

N, T, D, ROWS, PAGES, PAGE, WIDE = 3, 10, 4, 7, 12, 4, 6
CU, TOKENS = Packed(role="cu_seqlens"), Packed()


class OutsideStep(NamedTuple):
    """A step with its contract.

    Attributes:
        name: short description.
        run, args, contract: the step.
        leaks: True if a lane reaches another lane.
    """

    name: str
    run: Callable[..., Any]
    args: tuple[Any, ...]
    contract: LaneContract
    leaks: bool


class Leaks(NamedTuple):
    """A step in which a lane reaches another lane."""

    run: Callable[..., Any]


numbers = lambda *shape: jnp.asarray(np.random.default_rng(0).normal(size=shape) * 0.5, jnp.float32)


x, cu, slots = numbers(T, D), jnp.array([0, 4, 5, 8], jnp.int32), jnp.array([2, 5, 1], jnp.int32)
table, positions = jnp.array([[1, 2], [3, 4], [5, 6]], jnp.int32), jnp.array([0, 1, 2, 3, 0, 0, 1, 2, 0, 0], jnp.int32)
t, STEPS = jnp.arange(T), list[OutsideStep]()


def cases(args: tuple[Any, ...], entries: tuple[Any, ...], results: Any = TOKENS, **steps: Any) -> None:
    """List steps of one contract by name."""
    for name, step in steps.items():
        run, leaks = (step.run, True) if isinstance(step, Leaks) else (step, False)
        STEPS.append(OutsideStep(name, run, args, LaneContract(entries, results), leaks))


PACKED, OF_TOKENS = (x, cu), (TOKENS, CU)
TILES = PACKED, OF_TOKENS, Lane()
STATES = ((x, cu, numbers(N, D)), (TOKENS, CU, Lane()))
ROW_POOL = ((x, cu, numbers(N, D)), (TOKENS, CU, Pool("s")), Pool("s"))
POOL = ((numbers(ROWS, D), slots, x, cu), (Pool("s"), SlotMap("s", ROWS), TOKENS, CU), Pool("s"))
PAGED = (
    (numbers(PAGES, PAGE, D), table, x, cu, positions),
    (Pool("kv"), PageTable("kv", PAGES), TOKENS, CU, TOKENS),
    Pool("kv"),
)
LANES = ((numbers(N, D), jnp.array([3, 1, 5], jnp.int32)), (Lane(), Lane()), Lane())


ids = lambda c: jnp.searchsorted(c[1:], t, side="right")
own = lambda c: jnp.clip(ids(c), 0, N - 1)
first = lambda c: t == c[own(c)]
position = lambda c: t - c[own(c)]
scanned = lambda op, *operands: lax.associative_scan(op, operands)[-1]


def recurrence(x, resets, reverse=False):
    return lax.scan(
        lambda h, a: (jnp.where(a[1], 0.0, h) * 0.9 + a[0],) * 2, jnp.zeros(D), (x, resets), reverse=reverse
    )[1]


restarted = lambda left, right: (left[0] | right[0], jnp.where(right[0][:, None], right[1], left[1] * 0.9 + right[1]))


def gated(left, right):
    f = right[0][..., None]
    return (
        left[0] | right[0],
        jnp.where(f, right[1], left[1] * right[1]),
        jnp.where(f, right[2], left[2] * right[1] + right[2]),
    )


of_one_id = lambda left, right: (right[0], jnp.where((left[0] == right[0])[:, None], left[1] + right[1], right[1]))
continued = lambda left, right: (left[0] & right[0], jnp.where(right[0][:, None], left[1] + right[1], right[1]))


def scan_with_zero_decay(x, c):
    a = jnp.where(first(c)[:, None], 0.0, 0.9) * jnp.ones_like(x)
    return scanned(lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1]), a, x)


def recurrence_by_ids(x, c):
    i = ids(c)

    def tok(h, a):
        xt, same = a
        h = jnp.where(same, h, 0.0) * 0.9 + xt
        return h, h

    return lax.scan(tok, jnp.zeros(D), (x, i == jnp.concatenate([jnp.array([-1]), i[:-1]])))[1]


def recurrence_by_the_last_id(is_kept, of=ids, next_id=lambda i, last: i):
    """Return a step that keeps the state where `is_kept` of this and the last id."""

    def run(x, c):
        def tok(s, a):
            h, last = s
            xt, i = a
            h = jnp.where(is_kept(i, last), h, 0.0) * 0.9 + xt
            return (h, next_id(i, last)), h

        return lax.scan(tok, (jnp.zeros(D), jnp.int32(-1)), (x, of(c)))[1]

    return run


def windows(idx, c, places):
    """Sum tokens at places that are masked by the start of each lane."""
    return lambda x: jnp.where((idx >= c[own(c)][:, None])[..., None], x[jnp.maximum(places, 0)], 0).sum(1)


cases(
    PACKED, OF_TOKENS,
    segmented_scan=lambda x, c: scanned(restarted, first(c), x),
    gated_segmented_scan=lambda x, c: scanned(gated, first(c), jax.nn.sigmoid(x), x),
    segmented_scan_by_ids=lambda x, c: scanned(of_one_id, ids(c), x),
    scan_with_zero_decay=Leaks(scan_with_zero_decay),
    recurrence_by_ids=recurrence_by_ids,
    recurrence_with_the_last_id=recurrence_by_the_last_id(lambda i, last: i == last),
    recurrence_with_the_last_clipped_id=recurrence_by_the_last_id(lambda i, last: ~(i != last), own),
    recurrence_with_no_smaller_id=Leaks(recurrence_by_the_last_id(lambda i, last: i >= last)),
    recurrence_with_the_next_id=Leaks(recurrence_by_the_last_id(lambda i, last: i == last + 1)),
    recurrence_reset_by_isin=lambda x, c: recurrence(x, jnp.isin(t, c[:-1])),
    recurrence_reset_by_marks=lambda x, c: recurrence(x, jnp.zeros(T, bool).at[c[:-1]].set(True)),
    recurrence_reset_at_any_start=lambda x, c: recurrence(x, (t[:, None] == c[None, :-1]).any(1)),
    recurrence_reset_at_position_0=lambda x, c: lax.scan(
        lambda h, a: (jnp.where(a[1] == 0, 0.0, h) * 0.9 + a[0],) * 2, jnp.zeros(D), (x, position(c)))[1],
    recurrence_where_ids_rise=lambda x, c: recurrence(x, jnp.diff(ids(c), prepend=-1) > 0),
    recurrence_where_ids_rise_by_two=Leaks(lambda x, c: recurrence(x, jnp.diff(ids(c), prepend=-1) > 1)),
    recurrence_of_reversed_tokens=lambda x, c: recurrence(x[::-1], (t == c[own(c) + 1] - 1)[::-1])[::-1],
    recurrence_of_reversed_tokens_by_starts=Leaks(
        lambda x, c: recurrence(x[::-1], (t == c[own(c)])[::-1])[::-1]),
    recurrence_of_reversed_tokens_alone=Leaks(lambda x, c: recurrence(x[::-1], t == c[own(c) + 1] - 1)[::-1]),
    recurrence_in_reverse=lambda x, c: recurrence(x, t == c[own(c) + 1] - 1, reverse=True),
    place_by_a_maximum=lambda x, c: x[jnp.maximum(t - 2, c[own(c)])],
    place_by_a_condition=lambda x, c: (lambda start: x[jnp.where(t - 2 > start, t - 2, start)])(c[own(c)]),
    place_by_an_end=lambda x, c: x[jnp.where(t + 2 < c[own(c) + 1], t + 2, t)],
    place_by_a_late_end=Leaks(lambda x, c: x[jnp.where(t + 2 <= c[own(c) + 1], t + 2, t)]),
    place_by_an_early_condition=Leaks(
        lambda x, c: (lambda start: x[jnp.where(t - 2 >= start - 1, t - 2, start)])(c[own(c)])),
    place_before_the_start=Leaks(lambda x, c: x[jnp.maximum(t - 2, jnp.maximum(c[own(c)] - 1, 0))]),
    places_clipped_to_the_lane=lambda x, c: x[
        jnp.clip(t[:, None] + jnp.arange(-1, 2), c[own(c)][:, None], c[own(c) + 1][:, None] - 1)].mean(1),
    window_of_every_second_token=lambda x, c: (
        lambda idx: windows(idx, c, idx)(x))(t[:, None] - 2 * jnp.arange(3)),
    window_of_every_second_token_masked_by_each=Leaks(lambda x, c: (
        lambda idx: windows(idx, c, 2 * idx - t[:, None])(x))(t[:, None] - jnp.arange(3))),
)  # fmt: skip
cases(*STATES, states_with_padding_in_lane_0=lambda x, c, h0: x + h0[jnp.where(t < c[-1], ids(c), 0)])
cases(
    *STATES, Lane(),
    sums_with_padding_in_lane_0=Leaks(
        lambda x, c, h0: h0 + jax.ops.segment_sum(x, jnp.where(t < c[-1], ids(c), 0), N)),
)  # fmt: skip


def convolution_by_pad(x, c):
    p, out = position(c), x
    for k in (1, 2):
        out += jnp.where((p >= k)[:, None], jnp.pad(x, ((k, 0), (0, 0)))[:-k], 0)
    return out


def convolution_by_concatenate(x, c):
    i, out = ids(c), x
    for k in (1, 2):
        sh = jnp.concatenate([jnp.zeros((k, D)), x[:-k]])
        si = jnp.concatenate([jnp.full((k,), -1), i[:-k]])
        out += jnp.where((si == i)[:, None], sh, 0)
    return out


def padded(of_window):
    """Return a step that sums windows of one padded array: `of_window` of the window and its mask."""

    def run(x, c):
        xp, p = jnp.pad(x, ((2, 0), (0, 0))), position(c)
        return sum(of_window(xp[k : k + T], (p >= 2 - k)[:, None]) for k in range(3))

    return run


def convolution_by_roll(x, c):
    p = position(c)
    return sum(jnp.where((p >= k)[:, None], jnp.roll(x, k, 0), 0) for k in range(3))


def convolution_of_stacked_windows(x, c):
    xp = jnp.pad(x, ((2, 0), (0, 0)))
    ok = position(c)[:, None] >= 2 - jnp.arange(3)
    return jnp.einsum(
        "tkd,k->td", jnp.where(ok[..., None], jnp.stack([xp[k : k + T] for k in range(3)], 1), 0), jnp.ones(3)
    )


cases(
    PACKED, OF_TOKENS,
    convolution_by_pad=convolution_by_pad,
    convolution_by_gather=lambda x, c: (lambda idx: windows(idx, c, idx)(x))(t[:, None] - jnp.arange(3)[None]),
    convolution_by_concatenate=convolution_by_concatenate,
    convolution_by_roll=convolution_by_roll,
    convolution_times_zero=Leaks(padded(lambda window, ok: window * 0 + jnp.where(ok, window, 0))),
    convolution_by_slices=padded(lambda window, ok: jnp.where(ok, window, 0)),
    convolution_of_stacked_windows=convolution_of_stacked_windows,
)  # fmt: skip


def pages_by_flat_slots(pg, tb, k, c, p):
    i, p = own(c), position(c)
    page = tb[i, jnp.clip(p // PAGE, 0, 1)]
    flat = jnp.where(t < c[-1], page * PAGE + p % PAGE, PAGES * PAGE)
    return pg.reshape(-1, D).at[flat].set(k, mode="drop").reshape(pg.shape)


def pages_filled(pg, tb, k, c, p):
    page = tb.at[ids(c), p // PAGE].get(mode="fill", fill_value=PAGES)
    return pg.at[page, p % PAGE].set(k, mode="drop")


def pages_minus_one(pg, tb, k, c, p):
    page = jnp.take_along_axis(tb[own(c)], (p // PAGE)[:, None], 1)[:, 0]
    page = jnp.where(t < c[-1], page, -1)
    return pg.at[page, p % PAGE].set(k, mode="drop", wrap_negative_indices=False)


def pages_in_a_loop(pg, tb, k, c, p):
    i = own(c)

    def tok(j, pg):
        written = lambda pg: lax.dynamic_update_slice(pg, k[j][None, None], (tb[i[j], p[j] // PAGE], p[j] % PAGE, 0))
        return lax.cond(j < c[-1], written, lambda pg: pg, pg)

    return lax.fori_loop(0, T, tok, pg)


cases(
    *PAGED, pages_by_flat_slots=pages_by_flat_slots, pages_filled=pages_filled, pages_minus_one=pages_minus_one,
    pages_in_a_loop=pages_in_a_loop,
)  # fmt: skip


def difference_of_running_sums(pool, s, x, c):
    cs = jnp.concatenate([jnp.zeros((1, D)), jnp.cumsum(x, 0)])
    return pool.at[s].set(cs[c[1:]] - cs[c[:-1]])


def softmax_of_each_sequence(x, c):
    i, s = ids(c), x.sum(1)
    e = jnp.exp(s - jax.ops.segment_max(s, i, N)[own(c)])
    return x * (e / jax.ops.segment_sum(e, i, N)[own(c)])[:, None]


cases(
    *POOL,
    last_tokens_to_rows=lambda pool, s, x, c: pool.at[s].set(x[c[1:] - 1]),
    sums_to_rows=lambda pool, s, x, c: pool.at[s].add(jax.ops.segment_sum(x, ids(c), N)),
    last_tokens_or_rows=lambda pool, s, x, c: pool.at[s].set(
        jnp.where((jnp.diff(c) > 0)[:, None], jnp.take(x, c[1:] - 1, axis=0), pool[s])),
    difference_of_running_sums=Leaks(difference_of_running_sums),
)  # fmt: skip
cases(PACKED, OF_TOKENS, softmax_of_each_sequence=softmax_of_each_sequence)


places = lambda c: c[:-1, None] + jnp.arange(WIDE)
before_the_end = lambda c: places(c) < c[1:, None]
within = lambda c: jnp.arange(WIDE)[None] < jnp.diff(c)[:, None]


def tiles(mask=within, index=places, last=T - 1, clip=True):
    """Return a step that gathers tokens of each lane, masked."""

    def run(x, c):
        idx, ok = index(c), mask(c)
        return jnp.where(ok[..., None], x[jnp.clip(idx, 0, last) if clip else jnp.minimum(idx, last)], 0)

    return run


def tiles_scattered_flat(guard, **mode):
    def run(x, c):
        i, p = own(c), position(c)
        flat = jnp.where(guard(c, p), i * WIDE + p, N * WIDE)
        return jnp.zeros((N * WIDE, D)).at[flat].set(x, **(mode or {"mode": "drop"})).reshape(N, WIDE, D)

    return run


in_tile = lambda c, p: (t < c[-1]) & (p < WIDE)
in_rows = lambda c: own(c) * WIDE + jnp.clip(position(c), 0, WIDE - 1)


def tiles_read_back_flat(places, **mode):
    def run(x, c):
        sums = jnp.cumsum(tiles_scattered_flat(in_tile)(x, c), 1).reshape(N * WIDE, D)
        return sums.at[places(c)].get(**mode)

    return run


sliced = lambda x, start: lax.dynamic_slice(jnp.pad(x, ((0, WIDE), (0, 0))), (start, 0), (WIDE, D))


cases(
    *TILES,
    tiles_before_the_end=tiles(before_the_end),
    tiles_within_the_length=tiles(clip=False),
    tiles_clipped=lambda x, c: jnp.where(
        (jnp.arange(WIDE)[None] < (c[1:] - c[:-1])[:, None])[..., None], x.at[places(c)].get(mode="clip"), 0),
    tiles_filled=lambda x, c: x.at[jnp.where(within(c), places(c), T)].get(mode="fill", fill_value=0),
    tiles_taken=lambda x, c: jnp.where(
        within(c)[..., None], jnp.take(x, places(c), axis=0, mode="fill", fill_value=0), 0),
    tiles_scattered=lambda x, c: (
        jnp.zeros((N, WIDE, D)).at[ids(c), jnp.minimum(position(c), WIDE - 1)].set(x, mode="drop")),
    tiles_scattered_and_dropped=lambda x, c: jnp.zeros((N, WIDE, D)).at[ids(c), position(c)].set(x, mode="drop"),
    tiles_scattered_flat=Leaks(tiles_scattered_flat(lambda c, p: t < c[-1])),
    tiles_scattered_flat_and_guarded=tiles_scattered_flat(in_tile),
    tiles_scattered_flat_and_clamped=Leaks(tiles_scattered_flat(in_tile, mode="clip")),
    tiles_scattered_flat_by_ids=lambda x, c: (
        jnp.zeros((N * WIDE, D)).at[ids(c) * WIDE + t % WIDE].add(x, mode="drop").reshape(N, WIDE, D)),
    tiles_scattered_flat_in_8_bits=Leaks(
        lambda x, c: (
            jnp.zeros((120, D)).at[ids(c).astype(jnp.int8) * jnp.int8(40) + (t + 30).astype(jnp.int8)]
            .add(x, mode="drop").reshape(N, 40, D))),
    tiles_scattered_flat_with_padding=Leaks(
        lambda x, c: jnp.zeros((N * WIDE, D)).at[in_rows(c)].add(x).reshape(N, WIDE, D)),
    tiles_sliced_by_lane=lambda x, c: jnp.where(
        within(c)[..., None], jax.vmap(lambda i: sliced(x, c[i]))(jnp.arange(N)), 0),
    tiles_sliced_by_start=lambda x, c: jnp.where(within(c)[..., None], jax.vmap(lambda s: sliced(x, s))(c[:-1]), 0),
    tiles_of_one_more=Leaks(tiles(lambda c: jnp.arange(WIDE)[None] <= jnp.diff(c)[:, None])),
    tiles_times_a_mask=Leaks(lambda x, c: x[jnp.clip(places(c), 0, T - 1)] * within(c)[..., None]),
    tiles_before_the_start=Leaks(tiles(index=lambda c: c[:-1, None] - jnp.arange(WIDE))),
)  # fmt: skip


def put_back(put):
    """Return a step that sums in tiles and puts them back: `put` of tokens, sums, places, mask and layout."""
    return lambda x, c: put(x, jnp.cumsum(tiles(before_the_end)(x, c), 1), places(c), before_the_end(c), c)


def tiles_back_without_a_mask(x, c):
    tl = tiles(before_the_end)(x, c)
    return jnp.zeros_like(x).at[places(c)].set(tl + x[c[1:] - 1][:, None], mode="drop")


cases(
    PACKED, OF_TOKENS,
    tiles_gathered_back=put_back(lambda x, tl, idx, ok, c: tl[own(c), jnp.clip(position(c), 0, WIDE - 1)]),
    tiles_scattered_back=put_back(
        lambda x, tl, idx, ok, c: jnp.zeros_like(x).at[jnp.where(ok, idx, T)].set(tl, mode="drop")),
    tiles_scattered_back_flat=put_back(lambda x, tl, idx, ok, c: (
        jnp.zeros_like(x).at[jnp.where(ok, idx, T).reshape(-1)].set(tl.reshape(-1, D), mode="drop"))),
    tiles_added_back=put_back(
        lambda x, tl, idx, ok, c: jnp.zeros_like(x).at[idx].add(jnp.where(ok[..., None], tl, 0), mode="drop")),
    tiles_added_back_one_later=Leaks(put_back(
        lambda x, tl, idx, ok, c: jnp.zeros_like(x).at[idx + 1].add(jnp.where(ok[..., None], tl, 0), mode="drop"))),
    tiles_added_back_elsewhere=Leaks(put_back(
        lambda x, tl, idx, ok, c: jnp.zeros_like(x).at[idx].add(jnp.where(ok[..., None], 0, tl + 1), mode="drop"))),
    tiles_added_back_scaled=Leaks(put_back(lambda x, tl, idx, ok, c: jnp.zeros_like(x).at[idx].add(
        jnp.where(ok[..., None], tl, 0) * x[jnp.maximum(c[1:] - 1, 0)][:, None], mode="drop"))),
    tiles_read_back_flat=tiles_read_back_flat(in_rows),
    tiles_read_back_by_a_mask=tiles_read_back_flat(
        lambda c: jnp.where(in_tile(c, position(c)), own(c) * WIDE + position(c), N * WIDE),
        mode="fill", fill_value=0),
    tiles_read_back_by_a_mask_and_clamped=Leaks(tiles_read_back_flat(
        lambda c: jnp.where(in_tile(c, position(c)), own(c) * WIDE + position(c), N * WIDE), mode="clip")),
    tiles_back_without_a_mask=Leaks(tiles_back_without_a_mask),
)  # fmt: skip


tokens_of = lambda x, start, stop, state: lax.fori_loop(start, stop, lambda t, h: h * 0.9 + x[t], state)


def token_loop_in_a_scan(x, c, h0):
    def lane(_, s):
        a, b, h = s
        return None, lax.while_loop(lambda s: s[0] < b, lambda s: (s[0] + 1, s[1] * 0.9 + x[s[0]]), (a, h))[1]

    return lax.scan(lane, None, (c[:-1], c[1:], h0))[1]


def token_scan_with_a_mask(x, c, h0):
    def lane(i):
        def tok(h, j):
            tt = c[i] + j
            return jnp.where(tt < c[i + 1], h * 0.9 + x[jnp.minimum(tt, T - 1)], h), None

        return lax.scan(tok, h0[i], jnp.arange(WIDE))[0]

    return lax.map(lane, jnp.arange(N))


sum_between = lambda x, start, stop: jnp.where(((t >= start) & (t < stop))[:, None], x, 0).sum(0)


def lanes_in_turn(state):
    """Return a step with one lane per iteration: `state` of tokens, layout, lane and row."""
    return lambda x, c, pool: lax.fori_loop(0, N, lambda i, pool: pool.at[i].set(state(x, c, i, pool[i])), pool)


def lane_loop_carried_state(x, c, pool):
    def lane(i, s):
        pool, h = s
        h = tokens_of(x, c[i], c[i + 1], h)
        return pool.at[i].set(h), h

    return lax.fori_loop(0, N, lane, (pool, jnp.zeros(D)))[0]


cases(
    *STATES, Lane(),
    unrolled_lanes=lambda x, c, h0: jnp.stack([tokens_of(x, c[i], c[i + 1], h0[i]) for i in range(N)]),
    token_loop_by_vmap=lambda x, c, h0: jax.vmap(lambda a, b, h: tokens_of(x, a, b, h))(c[:-1], c[1:], h0),
    token_loop_in_a_map=lambda x, c, h0: lax.map(lambda s: tokens_of(x, *s), (c[:-1], c[1:], h0)),
    token_loop_in_a_scan=token_loop_in_a_scan,
    token_loop_by_position=lambda x, c, h0: lax.map(
        lambda i: lax.fori_loop(0, c[i + 1] - c[i], lambda t, h: h * 0.9 + x[c[i] + t], h0[i]), jnp.arange(N)),
    token_scan_with_a_mask=token_scan_with_a_mask,
    masked_sum_in_a_map=lambda x, c, h0: lax.map(lambda i: sum_between(x, c[i], c[i + 1]), jnp.arange(N)),
    masked_sum_by_vmap=lambda x, c, h0: jax.vmap(lambda a, b: sum_between(x, a, b))(c[:-1], c[1:]),
)  # fmt: skip
cases(
    *ROW_POOL,
    lane_loop_with_token_loop=lanes_in_turn(lambda x, c, i, row: tokens_of(x, c[i], c[i + 1], row)),
    lane_loop_one_more_token=Leaks(lanes_in_turn(lambda x, c, i, row: tokens_of(x, c[i], c[i + 1] + 1, row))),
    lane_loop_next_token=Leaks(lanes_in_turn(lambda x, c, i, row: lax.fori_loop(
        c[i], c[i + 1], lambda t, h: h * 0.9 + x[jnp.minimum(t + 1, T - 1)], row))),
    lane_loop_carried_state=Leaks(lane_loop_carried_state),
    lane_loop_from_the_first=Leaks(lanes_in_turn(lambda x, c, i, row: tokens_of(x, c[0], c[i + 1], row))),
)  # fmt: skip
cases(
    PACKED, OF_TOKENS,
    segmented_scan_by_kept_tokens=lambda x, c: scanned(continued, t > c[own(c)], x),
    segmented_scan_that_keeps_starts=Leaks(lambda x, c: scanned(continued, t >= c[own(c)], x)),
)  # fmt: skip


def recurrence_by_number(first, reverse=False):
    """Return a step that reads the tokens, and their ids, by the number of the iteration."""

    def run(x, c, states):
        i = own(c)

        def tok(h, k):
            h = jnp.where(first(c, i, k), states[i[k]], h) * 0.9 + x[k]
            return h, h

        return lax.scan(tok, jnp.zeros(D), t, reverse=reverse)[1]

    return run


def states_by_number(keeps, lane):
    """Return a step with the state of each lane as carry; padding keeps it."""

    def run(x, c, states):
        i = own(c)

        def tok(states, k):
            h = states[i[k]] * 0.9 + x[k]
            return jnp.where(keeps(c, k), states.at[lane(i, k)].set(h), states), h

        return lax.scan(tok, states, t)[::-1]

    return run


def each_lane(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, turns: jax.vmap(run)(x, turns)


MATRICES = ((numbers(N, D, D) * 0.3 + 3 * jnp.eye(D)[None], numbers(N, D)), (Lane(), Lane()), Lane())
OF_LANES = {
    "lax.fori_loop": each_lane(lambda x, n: lax.fori_loop(0, n, lambda i, h: jnp.tanh(h), x)),
    "lax.while_loop": each_lane(
        lambda x, n: lax.while_loop(lambda s: s[1] < n, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0))[0]
    ),
    "lax.switch": each_lane(lambda x, n: lax.switch(n % 3, [jnp.sin, jnp.cos, jnp.tanh], x)),
    "lax.cond": each_lane(lambda x, n: lax.cond(n > 2, jnp.sin, jnp.cos, x)),
    "loop to the greatest": lambda x, n: lax.fori_loop(
        0, n.max(), lambda t, h: jnp.where((t < n)[:, None], jnp.tanh(h), h), x
    ),
    "loop until all have stopped": lambda x, n: lax.while_loop(
        lambda s: (s[1] < n).any(), lambda s: (jnp.where((s[1] < n)[:, None], jnp.tanh(s[0]), s[0]), s[1] + 1), (x, 0)
    )[0],
}
OF_MATRICES: dict[str, Any] = {
    "jnp.linalg.solve": lambda a, b: jnp.linalg.solve(a, b[..., None])[..., 0],
    "jnp.linalg.inv": lambda a, b: jnp.linalg.inv(a),
    "jnp.linalg.det": lambda a, b: jnp.linalg.det(a),
    "jnp.linalg.qr": lambda a, b: jnp.linalg.qr(a)[1],
    "jnp.linalg.svd": lambda a, b: jnp.linalg.svd(a)[1],
    "jnp.linalg.eigh": lambda a, b: jnp.linalg.eigh(a)[0],
    "jnp.linalg.pinv": lambda a, b: jnp.linalg.pinv(a),
    "jnp.linalg.cholesky": lambda a, b: jnp.linalg.cholesky(a @ a.mT),
    "jax.scipy.linalg.solve_triangular": lambda a, b: jax.scipy.linalg.solve_triangular(a, b[..., None], lower=True),
    "lax.linalg.tridiagonal_solve": lambda a, b: lax.linalg.tridiagonal_solve(b, b + 3, b, b[..., None]),
    "jax.scipy.sparse.linalg.cg": lambda a, b: jax.vmap(
        lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: a @ v, b, maxiter=5)[0]
    )(a, b),
    "jax.scipy.sparse.linalg.gmres": lambda a, b: jax.vmap(
        lambda a, b: jax.scipy.sparse.linalg.gmres(lambda v: a @ v, b, maxiter=2)[0]
    )(a, b),
    "jax.scipy.linalg.expm": lambda a, b: jax.scipy.linalg.expm(a * 0.1),
    "jnp.searchsorted": lambda a, b: jax.vmap(lambda a, b: jnp.searchsorted(jnp.sort(b), a))(a, b),
    "jnp.interp": lambda a, b: jnp.interp(b, jnp.arange(3.0), jnp.ones(3)),
    "lax.map": lambda a, b: lax.map(lambda v: v / v.sum(), b, batch_size=2),
    "lax.platform_dependent": lambda a, b: lax.platform_dependent(b, cpu=lambda v: v * 2, default=lambda v: v + v),
}
cases(*LANES, **OF_LANES)
cases(*MATRICES, **OF_MATRICES)
cases(*STATES, **{
    "recurrence by number": recurrence_by_number(lambda c, i, k: k == c[i[k]]),
    "recurrence by number and position": recurrence_by_number(lambda c, i, k: k - c[i[k]] == 0),
    "recurrence by number, reset late": Leaks(recurrence_by_number(lambda c, i, k: k - c[i[k]] == 1)),
    "recurrence by number, start of the previous id": Leaks(
        recurrence_by_number(lambda c, i, k: k == c[i[jnp.maximum(k - 1, 0)]])),
    "recurrence by number, in reverse": Leaks(recurrence_by_number(lambda c, i, k: k == c[i[k]], reverse=True)),
})  # fmt: skip
cases(*STATES, (TOKENS, Lane()), **{
    "states by number": states_by_number(lambda c, k: k < c[-1], lambda i, k: i[k]),
    "states by number, with padding": Leaks(states_by_number(lambda c, k: k <= c[-1], lambda i, k: i[k])),
    "states by number, of the next lane": Leaks(
        states_by_number(lambda c, k: k < c[-1], lambda i, k: jnp.minimum(i[k] + 1, N - 1))),
})  # fmt: skip


class FalseAlarm(NamedTuple):
    """A refused step that does not leak.

    Attributes:
        reason: of the refusal.
        respelling: name of a step with the same results that is proved.
    """

    reason: str
    respelling: str


NOT_PROVED = {
    "token_loop_by_vmap": FalseAlarm("a token for each lane, counted in one loop, is no fact", "token_loop_in_a_map"),
    "token_scan_with_a_mask": FalseAlarm(
        "the state is added to a token before the mask excludes other lanes", "token_loop_in_a_map"),
    "segmented_scan_by_ids": FalseAlarm(
        "an associative scan interleaves the ids, which then are no ids of tokens in line",
        "segmented_scan_by_kept_tokens"),
}  # fmt: skip
"""Steps that do not leak and are refused."""
