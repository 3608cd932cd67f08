"""Steps in outsiders' style: packed tokens, lane loops, per-lane numerics, and leaking relatives.

Each step has its verdict by runs in which one lane was disturbed.
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


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape) * 0.5, jnp.float32)


x, cu, slots = numbers(T, D), jnp.array([0, 4, 5, 8], jnp.int32), jnp.array([2, 5, 1], jnp.int32)
table, positions = jnp.array([[1, 2], [3, 4], [5, 6]], jnp.int32), jnp.array([0, 1, 2, 3, 0, 0, 1, 2, 0, 0], jnp.int32)
t, STEPS = jnp.arange(T), list[OutsideStep]()


def case(args: tuple[Any, ...], entries: tuple[Any, ...], results: Any = TOKENS, leaks: bool = False) -> Any:
    """Return a decorator that lists a step."""

    def listed(run: Callable[..., Any]) -> Callable[..., Any]:
        STEPS.append(OutsideStep(run.__name__.strip("_"), run, args, LaneContract(entries, results), leaks))
        return run

    return listed


PACKED, OF_TOKENS = (x, cu), (TOKENS, CU)
STATES = ((x, cu, numbers(N, D)), (TOKENS, CU, Lane()))
POOL = ((numbers(ROWS, D), slots, x, cu), (Pool("s"), SlotMap("s", ROWS), TOKENS, CU), Pool("s"))
PAGED = (
    (numbers(PAGES, PAGE, D), table, x, cu, positions),
    (Pool("kv"), PageTable("kv", PAGES), TOKENS, CU, TOKENS),
    Pool("kv"),
)
LANES = ((numbers(N, D), jnp.array([3, 1, 5], jnp.int32)), (Lane(), Lane()), Lane())


def ids(c):
    return jnp.searchsorted(c[1:], t, side="right")


def own(c):
    return jnp.clip(ids(c), 0, N - 1)


@case(PACKED, OF_TOKENS)
def segmented_scan(x, c):
    first = t == c[own(c)]

    def op(left, right):
        return left[0] | right[0], jnp.where(right[0][:, None], right[1], left[1] * 0.9 + right[1])

    return lax.associative_scan(op, (first, x))[1]


@case(PACKED, OF_TOKENS)
def gated_segmented_scan(x, c):
    first = t == c[own(c)]
    g = jax.nn.sigmoid(x)

    def op(left, right):
        f = right[0][..., None]
        return (
            left[0] | right[0],
            jnp.where(f, right[1], left[1] * right[1]),
            jnp.where(f, right[2], left[2] * right[1] + right[2]),
        )

    return lax.associative_scan(op, (first, g, x))[2]


@case(PACKED, OF_TOKENS)
def segmented_scan_by_ids(x, c):  # ids comparison within the operator
    def op(left, right):
        return right[0], jnp.where((left[0] == right[0])[:, None], left[1] + right[1], right[1])

    return lax.associative_scan(op, (ids(c), x))[1]


@case(PACKED, OF_TOKENS, leaks=True)
def scan_with_zero_decay(x, c):
    first = (t == c[own(c)])[:, None]
    a = jnp.where(first, 0.0, 0.9) * jnp.ones_like(x)
    return lax.associative_scan(lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1]), (a, x))[1]


@case(PACKED, OF_TOKENS)
def recurrence_by_ids(x, c):
    i = ids(c)
    prev = jnp.concatenate([jnp.array([-1]), i[:-1]])

    def tok(h, a):
        xt, same = a
        h = jnp.where(same, h, 0.0) * 0.9 + xt
        return h, h

    return lax.scan(tok, jnp.zeros(D), (x, i == prev))[1]


@case(PACKED, OF_TOKENS)
def recurrence_with_the_last_id(x, c):
    def tok(s, a):
        h, last = s
        xt, i = a
        h = jnp.where(i == last, h, 0.0) * 0.9 + xt
        return (h, i), h

    return lax.scan(tok, (jnp.zeros(D), jnp.int32(-1)), (x, ids(c)))[1]


@case(PACKED, OF_TOKENS)
def recurrence_reset_by_isin(x, c):
    starts = jnp.isin(t, c[:-1])
    return lax.scan(lambda h, a: (jnp.where(a[1], 0.0, h) * 0.9 + a[0],) * 2, jnp.zeros(D), (x, starts))[1]


@case(PACKED, OF_TOKENS)
def recurrence_reset_by_marks(x, c):
    starts = jnp.zeros(T, bool).at[c[:-1]].set(True)
    return lax.scan(lambda h, a: (jnp.where(a[1], 0.0, h) * 0.9 + a[0],) * 2, jnp.zeros(D), (x, starts))[1]


@case(PACKED, OF_TOKENS)
def recurrence_reset_at_any_start(x, c):
    starts = (t[:, None] == c[None, :-1]).any(1)
    return lax.scan(lambda h, a: (jnp.where(a[1], 0.0, h) * 0.9 + a[0],) * 2, jnp.zeros(D), (x, starts))[1]


@case(PACKED, OF_TOKENS)
def recurrence_reset_at_position_0(x, c):
    p = t - c[own(c)]
    return lax.scan(lambda h, a: (jnp.where(a[1] == 0, 0.0, h) * 0.9 + a[0],) * 2, jnp.zeros(D), (x, p))[1]


def recurrence(x, resets, reverse=False):
    return lax.scan(
        lambda h, a: (jnp.where(a[1], 0.0, h) * 0.9 + a[0],) * 2, jnp.zeros(D), (x, resets), reverse=reverse
    )[1]


@case(PACKED, OF_TOKENS)
def recurrence_where_ids_rise(x, c):
    return recurrence(x, jnp.diff(ids(c), prepend=-1) > 0)


@case(PACKED, OF_TOKENS, leaks=True)
def recurrence_where_ids_rise_by_two(x, c):
    return recurrence(x, jnp.diff(ids(c), prepend=-1) > 1)


@case(PACKED, OF_TOKENS)
def recurrence_of_reversed_tokens(x, c):
    return recurrence(x[::-1], (t == c[own(c) + 1] - 1)[::-1])[::-1]


@case(PACKED, OF_TOKENS)
def recurrence_in_reverse(x, c):
    return recurrence(x, t == c[own(c) + 1] - 1, reverse=True)


@case(PACKED, OF_TOKENS)
def place_by_a_maximum(x, c):
    return x[jnp.maximum(t - 2, c[own(c)])]


@case(PACKED, OF_TOKENS)
def place_by_a_condition(x, c):
    start = c[own(c)]
    return x[jnp.where(t - 2 > start, t - 2, start)]


@case(PACKED, OF_TOKENS, leaks=True)
def place_before_the_start(x, c):
    return x[jnp.maximum(t - 2, jnp.maximum(c[own(c)] - 1, 0))]


@case(PACKED, OF_TOKENS)
def places_clipped_to_the_lane(x, c):
    return x[jnp.clip(t[:, None] + jnp.arange(-1, 2), c[own(c)][:, None], c[own(c) + 1][:, None] - 1)].mean(1)


@case(PACKED, OF_TOKENS)
def window_of_every_second_token(x, c):
    idx = t[:, None] - 2 * jnp.arange(3)
    return jnp.where((idx >= c[own(c)][:, None])[..., None], x[jnp.maximum(idx, 0)], 0).sum(1)


@case(PACKED, OF_TOKENS, leaks=True)
def window_of_every_second_token_masked_by_each(x, c):
    idx = t[:, None] - jnp.arange(3)
    return jnp.where((idx >= c[own(c)][:, None])[..., None], x[jnp.maximum(2 * idx - t[:, None], 0)], 0).sum(1)


@case(*STATES)
def states_with_padding_in_lane_0(x, c, h0):
    return x + h0[jnp.where(t < c[-1], ids(c), 0)]


@case(*STATES, Lane(), leaks=True)
def sums_with_padding_in_lane_0(x, c, h0):
    return h0 + jax.ops.segment_sum(x, jnp.where(t < c[-1], ids(c), 0), N)


@case(PACKED, OF_TOKENS)
def convolution_by_pad(x, c):
    p = t - c[own(c)]
    out = x
    for k in (1, 2):
        out += jnp.where((p >= k)[:, None], jnp.pad(x, ((k, 0), (0, 0)))[:-k], 0)
    return out


@case(PACKED, OF_TOKENS)
def convolution_by_gather(x, c):
    st = c[own(c)]
    idx = t[:, None] - jnp.arange(3)[None]
    w = jnp.where((idx >= st[:, None])[..., None], x[jnp.maximum(idx, 0)], 0)
    return w.sum(1)


@case(PACKED, OF_TOKENS)
def convolution_by_concatenate(x, c):
    i = ids(c)
    out = x
    for k in (1, 2):
        sh = jnp.concatenate([jnp.zeros((k, D)), x[:-k]])
        si = jnp.concatenate([jnp.full((k,), -1), i[:-k]])
        out += jnp.where((si == i)[:, None], sh, 0)
    return out


@case(PACKED, OF_TOKENS)
def convolution_by_roll(x, c):
    p = t - c[own(c)]
    return sum(jnp.where((p >= k)[:, None], jnp.roll(x, k, 0), 0) for k in range(3))


@case(PACKED, OF_TOKENS, leaks=True)
def convolution_times_zero(x, c):  # one padded array, dynamic windows
    xp = jnp.pad(x, ((2, 0), (0, 0)))
    p = t - c[own(c)]
    return sum(xp[k : k + T] * 0 + jnp.where((p >= 2 - k)[:, None], xp[k : k + T], 0) for k in range(3))


@case(PACKED, OF_TOKENS)
def convolution_by_slices(x, c):
    xp = jnp.pad(x, ((2, 0), (0, 0)))
    p = t - c[own(c)]
    return sum(jnp.where((p >= 2 - k)[:, None], xp[k : k + T], 0) for k in range(3))


@case(PACKED, OF_TOKENS)
def convolution_of_stacked_windows(x, c):
    xp = jnp.pad(x, ((2, 0), (0, 0)))
    win = jnp.stack([xp[k : k + T] for k in range(3)], 1)
    p = t - c[own(c)]
    ok = p[:, None] >= 2 - jnp.arange(3)
    return jnp.einsum("tkd,k->td", jnp.where(ok[..., None], win, 0), jnp.ones(3))


@case(*PAGED)
def pages_by_flat_slots(pg, tb, k, c, p):
    i = own(c)
    p = t - c[i]
    page = tb[i, jnp.clip(p // PAGE, 0, 1)]
    real = t < c[-1]
    flat = jnp.where(real, page * PAGE + p % PAGE, PAGES * PAGE)
    return pg.reshape(-1, D).at[flat].set(k, mode="drop").reshape(pg.shape)


@case(*PAGED)
def pages_filled(pg, tb, k, c, p):
    i = ids(c)
    page = tb.at[i, p // PAGE].get(mode="fill", fill_value=PAGES)
    return pg.at[page, p % PAGE].set(k, mode="drop")


@case(*PAGED)
def pages_minus_one(pg, tb, k, c, p):
    i = own(c)
    page = jnp.take_along_axis(tb[i], (p // PAGE)[:, None], 1)[:, 0]
    page = jnp.where(t < c[-1], page, -1)
    return pg.at[page, p % PAGE].set(k, mode="drop", wrap_negative_indices=False)


@case(*PAGED)
def pages_in_a_loop(pg, tb, k, c, p):
    i = own(c)

    def tok(j, pg):
        return lax.cond(
            j < c[-1],
            lambda pg: lax.dynamic_update_slice(pg, k[j][None, None], (tb[i[j], p[j] // PAGE], p[j] % PAGE, 0)),
            lambda pg: pg,
            pg,
        )

    return lax.fori_loop(0, T, tok, pg)


@case(*POOL)
def last_tokens_to_rows(pool, s, x, c):
    return pool.at[s].set(x[c[1:] - 1])


@case(*POOL)
def sums_to_rows(pool, s, x, c):
    return pool.at[s].add(jax.ops.segment_sum(x, ids(c), N))


@case(*POOL)
def last_tokens_or_rows(pool, s, x, c):
    last = jnp.take(x, c[1:] - 1, axis=0)
    return pool.at[s].set(jnp.where((jnp.diff(c) > 0)[:, None], last, pool[s]))


@case(*POOL, leaks=True)
def difference_of_running_sums(pool, s, x, c):
    cs = jnp.cumsum(x, 0)
    cs = jnp.concatenate([jnp.zeros((1, D)), cs])
    return pool.at[s].set(cs[c[1:]] - cs[c[:-1]])


@case(PACKED, OF_TOKENS)
def softmax_of_each_sequence(x, c):
    i = ids(c)
    s = x.sum(1)
    m = jax.ops.segment_max(s, i, N)
    e = jnp.exp(s - m[own(c)])
    return x * (e / jax.ops.segment_sum(e, i, N)[own(c)])[:, None]


@case(PACKED, OF_TOKENS, Lane())
def tiles_before_the_end(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = idx < c[1:, None]
    return jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)


@case(PACKED, OF_TOKENS, Lane())
def tiles_within_the_length(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = jnp.arange(WIDE)[None] < jnp.diff(c)[:, None]
    return jnp.where(ok[..., None], x[jnp.minimum(idx, T - 1)], 0)


@case(PACKED, OF_TOKENS, Lane())
def tiles_clipped(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = jnp.arange(WIDE)[None] < (c[1:] - c[:-1])[:, None]
    return jnp.where(ok[..., None], x.at[idx].get(mode="clip"), 0)


@case(PACKED, OF_TOKENS, Lane())
def tiles_filled(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = jnp.arange(WIDE)[None] < jnp.diff(c)[:, None]
    return x.at[jnp.where(ok, idx, T)].get(mode="fill", fill_value=0)


@case(PACKED, OF_TOKENS, Lane())
def tiles_taken(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = jnp.arange(WIDE)[None] < jnp.diff(c)[:, None]
    return jnp.where(ok[..., None], jnp.take(x, idx, axis=0, mode="fill", fill_value=0), 0)


@case(PACKED, OF_TOKENS, Lane())
def tiles_scattered(x, c):
    i = own(c)
    p = t - c[i]
    return jnp.zeros((N, WIDE, D)).at[ids(c), jnp.minimum(p, WIDE - 1)].set(x, mode="drop")


@case(PACKED, OF_TOKENS, Lane())
def tiles_scattered_and_dropped(x, c):
    i = own(c)
    p = t - c[i]
    return jnp.zeros((N, WIDE, D)).at[ids(c), p].set(x, mode="drop")


@case(PACKED, OF_TOKENS, Lane(), leaks=True)
def tiles_scattered_flat(x, c):
    i = own(c)
    p = t - c[i]
    flat = jnp.where(t < c[-1], i * WIDE + p, N * WIDE)
    return jnp.zeros((N * WIDE, D)).at[flat].set(x, mode="drop").reshape(N, WIDE, D)


@case(PACKED, OF_TOKENS, Lane())
def tiles_scattered_flat_and_guarded(x, c):
    i = own(c)
    p = t - c[i]
    flat = jnp.where((t < c[-1]) & (p < WIDE), i * WIDE + p, N * WIDE)
    return jnp.zeros((N * WIDE, D)).at[flat].set(x, mode="drop").reshape(N, WIDE, D)


@case(PACKED, OF_TOKENS, Lane())
def tiles_sliced_by_lane(x, c):
    def lane(i):
        return lax.dynamic_slice(jnp.pad(x, ((0, WIDE), (0, 0))), (c[i], 0), (WIDE, D))

    tl = jax.vmap(lane)(jnp.arange(N))
    return jnp.where((jnp.arange(WIDE)[None] < jnp.diff(c)[:, None])[..., None], tl, 0)


@case(PACKED, OF_TOKENS, Lane())
def tiles_sliced_by_start(x, c):
    tl = jax.vmap(lambda s: lax.dynamic_slice(jnp.pad(x, ((0, WIDE), (0, 0))), (s, 0), (WIDE, D)))(c[:-1])
    return jnp.where((jnp.arange(WIDE)[None] < jnp.diff(c)[:, None])[..., None], tl, 0)


@case(PACKED, OF_TOKENS, Lane(), leaks=True)
def tiles_of_one_more(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = jnp.arange(WIDE)[None] <= jnp.diff(c)[:, None]
    return jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)


@case(PACKED, OF_TOKENS, Lane(), leaks=True)
def tiles_times_a_mask(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = jnp.arange(WIDE)[None] < jnp.diff(c)[:, None]
    return x[jnp.clip(idx, 0, T - 1)] * ok[..., None]


@case(PACKED, OF_TOKENS, Lane(), leaks=True)
def tiles_before_the_start(x, c):
    idx = c[:-1, None] - jnp.arange(WIDE)
    ok = jnp.arange(WIDE)[None] < jnp.diff(c)[:, None]
    return jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)


@case(PACKED, OF_TOKENS)
def tiles_gathered_back(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = idx < c[1:, None]
    tl = jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)
    tl = jnp.cumsum(tl, 1)
    i = own(c)
    p = t - c[i]
    return tl[i, jnp.clip(p, 0, WIDE - 1)]


@case(PACKED, OF_TOKENS)
def tiles_scattered_back(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = idx < c[1:, None]
    tl = jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)
    tl = jnp.cumsum(tl, 1)
    return jnp.zeros_like(x).at[jnp.where(ok, idx, T)].set(tl, mode="drop")


@case(PACKED, OF_TOKENS)
def tiles_scattered_back_flat(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = idx < c[1:, None]
    tl = jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)
    tl = jnp.cumsum(tl, 1)
    return jnp.zeros_like(x).at[jnp.where(ok, idx, T).reshape(-1)].set(tl.reshape(-1, D), mode="drop")


@case(PACKED, OF_TOKENS)
def tiles_added_back(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = idx < c[1:, None]
    tl = jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)
    tl = jnp.cumsum(tl, 1)
    return jnp.zeros_like(x).at[idx].add(jnp.where(ok[..., None], tl, 0), mode="drop")


@case(PACKED, OF_TOKENS, leaks=True)
def tiles_back_without_a_mask(x, c):
    idx = c[:-1, None] + jnp.arange(WIDE)
    ok = idx < c[1:, None]
    tl = jnp.where(ok[..., None], x[jnp.clip(idx, 0, T - 1)], 0)
    return jnp.zeros_like(x).at[idx].set(tl + x[c[1:] - 1][:, None], mode="drop")


@case(*STATES, Lane())
def unrolled_lanes(x, c, h0):
    return jnp.stack([lax.fori_loop(c[i], c[i + 1], lambda t, h: h * 0.9 + x[t], h0[i]) for i in range(N)])


@case(*STATES, Lane())
def token_loop_by_vmap(x, c, h0):
    return jax.vmap(lambda a, b, h: lax.fori_loop(a, b, lambda t, h: h * 0.9 + x[t], h))(c[:-1], c[1:], h0)


@case(*STATES, Lane())
def token_loop_in_a_map(x, c, h0):
    return lax.map(lambda s: lax.fori_loop(s[0], s[1], lambda t, h: h * 0.9 + x[t], s[2]), (c[:-1], c[1:], h0))


@case(*STATES, Lane())
def token_loop_in_a_scan(x, c, h0):
    def lane(_, s):
        a, b, h = s
        h = lax.while_loop(lambda s: s[0] < b, lambda s: (s[0] + 1, s[1] * 0.9 + x[s[0]]), (a, h))[1]
        return None, h

    return lax.scan(lane, None, (c[:-1], c[1:], h0))[1]


@case(*STATES, Lane())
def token_loop_by_position(x, c, h0):
    def lane(i):
        return lax.fori_loop(0, c[i + 1] - c[i], lambda t, h: h * 0.9 + x[c[i] + t], h0[i])

    return lax.map(lane, jnp.arange(N))


@case(*STATES, Lane())
def token_scan_with_a_mask(x, c, h0):
    def lane(i):
        def tok(h, j):
            tt = c[i] + j
            return jnp.where(tt < c[i + 1], h * 0.9 + x[jnp.minimum(tt, T - 1)], h), None

        return lax.scan(tok, h0[i], jnp.arange(WIDE))[0]

    return lax.map(lane, jnp.arange(N))


@case(*STATES, Lane())
def masked_sum_in_a_map(x, c, h0):
    def lane(i):
        own = (t >= c[i]) & (t < c[i + 1])
        return jnp.where(own[:, None], x, 0).sum(0)

    return lax.map(lane, jnp.arange(N))


@case(*STATES, Lane())
def masked_sum_by_vmap(x, c, h0):
    return jax.vmap(lambda a, b: jnp.where(((t >= a) & (t < b))[:, None], x, 0).sum(0))(c[:-1], c[1:])


@case((x, cu, numbers(N, D)), (TOKENS, CU, Pool("s")), Pool("s"))
def lane_loop_with_token_loop(x, c, pool):
    def lane(i, pool):
        h = pool[i]
        h = lax.fori_loop(c[i], c[i + 1], lambda t, h: h * 0.9 + x[t], h)
        return pool.at[i].set(h)

    return lax.fori_loop(0, N, lane, pool)


@case((x, cu, numbers(N, D)), (TOKENS, CU, Pool("s")), Pool("s"), leaks=True)
def lane_loop_one_more_token(x, c, pool):
    def lane(i, pool):
        h = lax.fori_loop(c[i], c[i + 1] + 1, lambda t, h: h * 0.9 + x[t], pool[i])
        return pool.at[i].set(h)

    return lax.fori_loop(0, N, lane, pool)


@case((x, cu, numbers(N, D)), (TOKENS, CU, Pool("s")), Pool("s"), leaks=True)
def lane_loop_next_token(x, c, pool):
    def lane(i, pool):
        h = lax.fori_loop(c[i], c[i + 1], lambda t, h: h * 0.9 + x[jnp.minimum(t + 1, T - 1)], pool[i])
        return pool.at[i].set(h)

    return lax.fori_loop(0, N, lane, pool)


@case((x, cu, numbers(N, D)), (TOKENS, CU, Pool("s")), Pool("s"), leaks=True)
def lane_loop_carried_state(x, c, pool):
    def lane(i, s):
        pool, h = s
        h = lax.fori_loop(c[i], c[i + 1], lambda t, h: h * 0.9 + x[t], h)
        return pool.at[i].set(h), h

    return lax.fori_loop(0, N, lane, (pool, jnp.zeros(D)))[0]


@case((x, cu, numbers(N, D)), (TOKENS, CU, Pool("s")), Pool("s"), leaks=True)
def lane_loop_from_the_first(x, c, pool):
    def lane(i, pool):
        h = lax.fori_loop(c[0], c[i + 1], lambda t, h: h * 0.9 + x[t], pool[i])
        return pool.at[i].set(h)

    return lax.fori_loop(0, N, lane, pool)


@case(PACKED, OF_TOKENS)
def segmented_scan_by_kept_tokens(x, c):
    def op(left, right):
        return left[0] & right[0], jnp.where(right[0][:, None], left[1] + right[1], right[1])

    return lax.associative_scan(op, (t > c[own(c)], x))[1]


@case(PACKED, OF_TOKENS, leaks=True)
def segmented_scan_that_keeps_starts(x, c):
    def op(left, right):
        return left[0] & right[0], jnp.where(right[0][:, None], left[1] + right[1], right[1])

    return lax.associative_scan(op, (t >= c[own(c)], x))[1]


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


BY_NUMBER = {
    "recurrence by number": (recurrence_by_number(lambda c, i, k: k == c[i[k]]), False),
    "recurrence by number and position": (recurrence_by_number(lambda c, i, k: k - c[i[k]] == 0), False),
    "recurrence by number, reset late": (recurrence_by_number(lambda c, i, k: k - c[i[k]] == 1), True),
    "recurrence by number, start of the previous id": (
        recurrence_by_number(lambda c, i, k: k == c[i[jnp.maximum(k - 1, 0)]]),
        True,
    ),
    "recurrence by number, in reverse": (recurrence_by_number(lambda c, i, k: k == c[i[k]], reverse=True), True),
}
STATES_BY_NUMBER = {
    "states by number": (states_by_number(lambda c, k: k < c[-1], lambda i, k: i[k]), False),
    "states by number, with padding": (states_by_number(lambda c, k: k <= c[-1], lambda i, k: i[k]), True),
    "states by number, of the next lane": (
        states_by_number(lambda c, k: k < c[-1], lambda i, k: jnp.minimum(i[k] + 1, N - 1)),
        True,
    ),
}


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
STEPS += [OutsideStep(name, run, LANES[0], LaneContract(*LANES[1:]), False) for name, run in OF_LANES.items()]
STEPS += [OutsideStep(name, run, MATRICES[0], LaneContract(*MATRICES[1:]), False) for name, run in OF_MATRICES.items()]
STEPS += [
    OutsideStep(name, run, STATES[0], LaneContract(STATES[1], TOKENS), leaks)
    for name, (run, leaks) in BY_NUMBER.items()
]
STEPS += [
    OutsideStep(name, run, STATES[0], LaneContract(STATES[1], (TOKENS, Lane())), leaks)
    for name, (run, leaks) in STATES_BY_NUMBER.items()
]


class FalseAlarm(NamedTuple):
    """A refused step that does not leak.

    Attributes:
        reason: of the refusal.
        respelling: name of a step with the same results that is proved.
    """

    reason: str
    respelling: str


NOT_PROVED = {
    "tiles_scattered_flat_and_guarded": FalseAlarm(
        "places of rows are a fact in two dimensions, not in a flat one", "tiles_scattered_and_dropped"
    ),
    "tiles_added_back": FalseAlarm(
        "zeros are added to tokens of other lanes, and an addition of zero counts as a write", "tiles_scattered_back"
    ),
    "token_loop_by_vmap": FalseAlarm("a token for each lane, counted in one loop, is no fact", "token_loop_in_a_map"),
    "token_scan_with_a_mask": FalseAlarm(
        "the state is added to a token before the mask excludes other lanes", "token_loop_in_a_map"
    ),
    "segmented_scan_by_ids": FalseAlarm(
        "an associative scan interleaves the ids, which then are no ids of tokens in line",
        "segmented_scan_by_kept_tokens",
    ),
    "recurrence_with_the_last_id": FalseAlarm(
        "the carried id is a lane only from the second iteration on", "recurrence_by_ids"
    ),
    "recurrence_of_reversed_tokens": FalseAlarm(
        "tokens in the opposite order are no tokens in line", "recurrence_in_reverse"
    ),
    "place_by_a_condition": FalseAlarm("a condition of two places is no limit", "place_by_a_maximum"),
}
"""Steps that do not leak and are refused."""
