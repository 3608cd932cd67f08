"""Further steps in the manner of vLLM, SGLang, Tokamax, MaxText and NeMo; each has a leaking relative.

More than 300 lines: a list.
"""

import jax
import jax.numpy as jnp
from jax import lax
from outside_steps import (
    CU,
    PACKED,
    PAGE,
    PAGED,
    PAGES,
    POOL,
    ROWS,
    STATES,
    STEPS,
    TOKENS,
    D,
    FalseAlarm,
    Leaks,
    N,
    T,
    cases,
    cu,
    first,
    ids,
    numbers,
    own,
    position,
    scanned,
    slots,
    t,
    x,
)
from outside_steps import NOT_PROVED as OLDER
from outside_steps import OF_TOKENS as OF_PACKED

from ir_passes import Lane, Packed, PageTable, Pool, Shared, SlotMap

__all__ = ["NOT_PROVED", "STEPS"]
TAPS, EXPERTS, RANK, VOCABULARY, DRAFTS = 3, 4, 2, 8, 3
next_lane = lambda c: jnp.minimum(own(c) + 1, N - 1)
CONV = ((numbers(7, TAPS - 1, D), slots, x, cu), (Pool("s"), SlotMap("s", 7), TOKENS, CU))
FLAT = (
    (numbers(PAGES * PAGE, D), jnp.array([4, 5, 6, 7, 12, 20, 21, 22, 48, 48], jnp.int32), x, cu),
    (Pool("kv"), PageTable("kv", PAGES * PAGE, role="write", packed=True), TOKENS, CU),
    Pool("kv"),
)
table = jnp.array([[1, 2], [3, 4], [5, 6]], jnp.int32)
lengths = jnp.array([5, 3, 8], jnp.int32)
DECODE = (
    (numbers(PAGES, PAGE, D), table, numbers(N, D), lengths),
    (Pool("kv"), PageTable("kv", PAGES), Lane(), Lane()),
    Lane(),
)
PREFIX = ((*PAGED[0][:4], lengths), (*PAGED[1][:4], Lane()), TOKENS)
WEIGHTS = (numbers(D, EXPERTS), numbers(EXPERTS, D, D))
EXPERT = ((x, cu, *WEIGHTS), (TOKENS, CU, Shared(), Shared()), TOKENS)
ADAPTERS = (
    (x, cu, jnp.array([1, 0, 2], jnp.int32), numbers(3, D, RANK), numbers(3, RANK, D)),
    (TOKENS, CU, Lane(), Shared(), Shared()),
    TOKENS,
)
LOGITS = ((numbers(N, VOCABULARY), jnp.zeros((N, VOCABULARY), jnp.int32)), (Lane(), Lane()))
VERIFY = (
    (jnp.array([[1, 2, 3], [4, 5, 6], [0, 1, 2]], jnp.int32), jnp.array([[1, 2, 0], [4, 0, 6], [0, 1, 2]], jnp.int32)),
    (Lane(), Lane()),
    (Lane(), Lane()),
)
SEGMENTS = ((x, jnp.asarray(ids(cu)), numbers(N, D)), (TOKENS, Packed(role="segment_ids"), Lane()), TOKENS)
COPIES = (
    (numbers(7, D), slots, jnp.array([3, 4, 6], jnp.int32)),
    (Pool("s"), SlotMap("s", 7, role="read"), SlotMap("s", 7, role="write")),
    Pool("s"),
)
FULL = ((x, cu, numbers(1000, D)), (TOKENS, CU, Shared()), TOKENS)

cases(*FLAT, slot_mapping=lambda kv, at, k, c: kv.at[at].set(k, mode="drop"),
      slot_mapping_of_the_next=Leaks(lambda kv, at, k, c: kv.at[at].set(jnp.roll(k, -1, 0), mode="drop")))  # fmt: skip
cases(PACKED, OF_PACKED, Lane(), logits_indices=lambda x, c: x[c[1:] - 1],
      third_token=Leaks(lambda x, c: x[jnp.minimum(c[:-1] + 2, T - 1)] * 2),
      logits_indices_one_later=Leaks(lambda x, c: x[jnp.minimum(c[1:], T - 1)]))  # fmt: skip


def conv_with_states(seen):
    def run(pool, s, x, c):
        rows, p = pool[s][own(c)], position(c)
        out = x
        for back in range(1, TAPS):
            old = jnp.take_along_axis(rows, jnp.clip(TAPS - 1 + p - back, 0, TAPS - 2)[:, None, None], 1)[:, 0]
            out += jnp.where((p >= back - seen)[:, None], jnp.roll(x, back, 0), old)
        return out

    return run


def window_of_states(keep):
    def run(pool, s, x, c):
        old, n, rows = pool[s], jnp.diff(c), []
        for back in range(TAPS - 1, 0, -1):
            token = x[jnp.maximum(c[1:] - back, 0)]
            kept = jnp.take_along_axis(old, jnp.clip(TAPS - 1 - back + n, 0, TAPS - 2)[:, None, None], 1)[:, 0]
            rows.append(jnp.where(keep(n, back)[:, None], token, kept))
        return pool.at[s].set(jnp.stack(rows, 1))

    return run


cases(*CONV, TOKENS, convolution_with_states=conv_with_states(0),
      convolution_with_states_one_late=Leaks(conv_with_states(1)))  # fmt: skip
cases(*CONV, Pool("s"), window_of_states=window_of_states(lambda n, back: n >= back),
      window_of_states_without_lengths=Leaks(window_of_states(lambda n, back: n >= 0)))  # fmt: skip


finite = lambda x: jnp.where(jnp.isfinite(x), x, 0.0)


def attention(mask, fill=-jnp.inf, values=finite):
    def run(x, c):
        scores = jnp.einsum("td,sd->ts", x, x) * D**-0.5
        return jax.nn.softmax(jnp.where(mask(c), scores, fill), -1) @ values(x)

    return run


same = lambda c: ids(c)[:, None] == ids(c)[None]
causal = t[:, None] >= t[None]


added = lambda left, right: (left[0] | right[0], jnp.where(right[0], right[1], left[1] + right[1]))


def chunk_of_ssd(mask, sums=lambda c, x: scanned(added, first(c), x)):
    def run(x, c):
        decay = sums(c, -jax.nn.softplus(x[:, 0]))
        weights = jnp.where(mask(c), jnp.exp(jnp.minimum(decay[:, None] - decay[None], 0.0)), 0.0)
        return (weights * jnp.where(mask(c), x @ x.T, 0.0)) @ finite(x)

    return run


def ratio(x, c, mask):
    weights = jnp.where(mask(c), jax.nn.sigmoid(x @ x.T), 0.0)
    return weights @ finite(x) / jnp.maximum(weights.sum(-1, keepdims=True), 1e-6)


def token_shift(x, c, h0, start):
    previous = jnp.concatenate([jnp.zeros((1, D)), x[:-1]])
    return x + 0.5 * jnp.where(start(c)[:, None], h0[own(c)], previous)


def stabilised(reset):
    def run(x, c):
        def token(carry, inputs):
            (h, m), (xt, is_first) = carry, inputs
            m = jnp.where(is_first, -1e30, m)
            new = jnp.maximum(m - 0.1, xt)
            h = jnp.where(is_first, 0.0, h) * jnp.exp(m - 0.1 - new) + jnp.exp(xt - new)
            return (h, new), h

        return lax.scan(token, (jnp.zeros(D), jnp.full(D, -1e30)), (x, reset(c)))[1]

    return run


def running_maximum(flags):
    op = lambda left, right: (
        left[0] | right[0], jnp.where(right[0][:, None], right[1], jnp.maximum(left[1], right[1])))  # fmt: skip
    return lambda x, c: scanned(op, flags(c), x)


def norm_of_sequences(x, c, count):
    sums = jax.ops.segment_sum(jnp.square(x).mean(-1), ids(c), N)
    return x * lax.rsqrt(sums / jnp.maximum(count(c), 1) + 1e-6)[own(c)][:, None]


def score_of_next_token(masks):
    def run(x, c):
        scores = jax.nn.log_softmax(x, -1)
        is_last, following = t + 1 == c[1:][own(c)], jnp.roll(jnp.argmax(x, -1), -1)
        following = jnp.where(is_last, 0, following) if masks == "tokens" else following
        picked = jnp.take_along_axis(scores, following[:, None], 1)[:, 0]
        return jnp.where(is_last, 0.0, picked) if masks else picked

    return run


cases(
    PACKED, OF_PACKED,
    attention_by_ids=attention(lambda c: same(c) & causal),
    attention_with_a_finite_mask=attention(lambda c: same(c) & causal, -1e30),
    attention_to_values_that_may_be_nan=Leaks(attention(lambda c: same(c) & causal, values=lambda x: x)),
    attention_by_positions=Leaks(attention(lambda c: position(c)[:, None] >= position(c)[None])),
    attention_in_a_window=attention(lambda c: same(c) & causal & (t[:, None] - t[None] < 3)),
    attention_in_a_window_only=Leaks(attention(lambda c: causal & (t[:, None] - t[None] < 3))),
    attention_between_bounds=attention(lambda c: (t[None] >= c[own(c)][:, None]) & causal),
    attention_one_before_bounds=Leaks(attention(lambda c: (t[None] >= c[own(c)][:, None] - 1) & causal)),
    quadratic_form_by_ids=lambda x, c: ratio(x, c, lambda c: same(c) & causal),
    quadratic_form_by_ids_or_diagonal=Leaks(lambda x, c: ratio(x, c, lambda c: ids(c)[:, None] >= ids(c)[None])),
    chunk_of_ssd=chunk_of_ssd(lambda c: same(c) & causal),
    chunk_of_ssd_causal=Leaks(chunk_of_ssd(lambda c: causal)),
    chunk_of_ssd_with_one_running_sum=Leaks(chunk_of_ssd(lambda c: same(c) & causal, lambda c, x: jnp.cumsum(x))),
    stabilised_recurrence=stabilised(first),
    stabilised_recurrence_one_late=Leaks(stabilised(lambda c: jnp.roll(first(c), 1))),
    running_maximum=running_maximum(first),
    running_maximum_of_ends=Leaks(running_maximum(lambda c: t == c[own(c) + 1] - 1)),
    norm_of_sequences=lambda x, c: norm_of_sequences(x, c, jnp.diff),
    norm_of_the_previous=Leaks(lambda x, c: x + norm_of_sequences(x, c, jnp.diff)[jnp.maximum(c[own(c)] - 1, 0)]),
    score_of_next_token=score_of_next_token("scores"),
    score_of_masked_next_token=score_of_next_token("tokens"),
    score_of_next_token_also_last=Leaks(score_of_next_token("")),
)  # fmt: skip
cases(*STATES, token_shift=lambda x, c, h0: token_shift(x, c, h0, first),
      token_shift_of_the_first=Leaks(lambda x, c, h0: token_shift(x, c, h0, lambda c: t == 0)))  # fmt: skip
previous = lambda x: jnp.roll(x, 1, 0)
w = numbers(D, D)
after_first = lambda c: (position(c) >= 1)[:, None]
cases(
    PACKED, OF_PACKED,
    projection_of_the_previous=lambda x, c: jnp.where(after_first(c), jax.nn.softmax(previous(x) @ w, -1), 0.0),
    channels_of_the_previous=lambda x, c: jnp.where(after_first(c), lax.top_k(previous(x), D)[0] + x, 0.0),
    projection_of_two_back=Leaks(lambda x, c: jnp.where(after_first(c), previous(previous(x)) @ w, 0.0)),
    norm_of_previous_tokens=Leaks(lambda x, c: jnp.where(after_first(c), jax.nn.softmax(previous(x), 0), 0.0)),
    projection_of_the_previous_in_reverse=Leaks(lambda x, c: jnp.where(after_first(c), (previous(x) @ w)[::-1], 0.0)),
    order_of_the_previous=lambda x, c: jnp.where(
        after_first(c), jnp.take_along_axis(x, jnp.argsort(previous(x), 1), 1), 0.0),
)  # fmt: skip
cases(
    *FULL,
    rotary=lambda x, c, cos: x * cos[position(c)],
    rotary_of_the_next=Leaks(lambda x, c, cos: x * cos[position(c)] + 0 * x[jnp.minimum(c[own(c) + 1], T - 1)]),
)


def paged_attention(rows):
    def run(kv, table, q, lengths):
        k = kv[rows(table)].reshape(N, -1, D)
        scores = jnp.einsum("nd,nsd->ns", q, k)
        scores = jnp.where(jnp.arange(2 * PAGE)[None] < lengths[:, None], scores, -1e30)
        return jnp.einsum("ns,nsd->nd", jax.nn.softmax(scores, -1), k)

    return run


def prefix_attention(lane):
    def run(kv, table, x, c, lengths):
        k = kv[table[lane(c)]].reshape(T, -1, D)
        scores = jnp.einsum("td,tsd->ts", x, k)
        visible = jnp.arange(2 * PAGE)[None] <= (position(c) + lengths[own(c)])[:, None]
        return jnp.einsum("ts,tsd->td", jax.nn.softmax(jnp.where(visible, scores, -1e30), -1), k)

    return run


def experts(x, router, w, combine):
    scores, chosen = lax.top_k(x @ router, 2)
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    sizes = jnp.bincount(chosen.reshape(-1), length=EXPERTS).astype(jnp.int32)
    out = lax.ragged_dot(x[order // 2], w, sizes)
    return jnp.einsum("tkd,tk->td", combine(out, order).reshape(*chosen.shape, D), jax.nn.softmax(scores, -1))


def experts_with_capacity(x, c, router, w):
    chosen = jnp.argmax(x @ router, -1)
    hot = jax.nn.one_hot(chosen, EXPERTS)
    place = (jnp.cumsum(hot, 0) * hot).sum(-1)
    return jnp.where((place <= 2)[:, None], jnp.einsum("td,tde->te", x, w[chosen]), 0.0)


cases(*DECODE, paged_attention=paged_attention(lambda table: table),
      paged_attention_of_the_next=Leaks(paged_attention(lambda table: jnp.roll(table, -1, 0))))  # fmt: skip
cases(*PREFIX, prefix_attention=prefix_attention(own), prefix_attention_of_the_next=Leaks(prefix_attention(next_lane)))
cases(
    *EXPERT,
    experts_sorted=lambda x, c, r, w: experts(x, r, w, lambda out, order: out[jnp.argsort(order)]),
    experts_unsorted_by_scatter=lambda x, c, r, w: experts(
        x, r, w, lambda out, order: jnp.zeros_like(out).at[order].set(out)),
    experts_left_sorted=Leaks(lambda x, c, r, w: experts(x, r, w, lambda out, order: out)),
    experts_with_capacity=Leaks(experts_with_capacity),
)  # fmt: skip


def adapters(lane):
    def run(x, c, chosen, a, b):
        number = chosen[lane(c)]
        return x + jnp.einsum("tr,trd->td", jnp.einsum("td,tdr->tr", x, a[number]), b[number])

    return run


def verified(axis):
    def run(drafts, targets):
        accepted = jnp.cumprod(drafts == targets, axis=axis).sum(1)
        place = jnp.minimum(accepted, DRAFTS - 1)
        return accepted, jnp.take_along_axis(targets, place[:, None], 1)[:, 0]

    return run


def counted(rows):
    def run(logits, counts):
        token = jnp.argmax(logits - 0.1 * counts, -1)
        return token, counts.at[rows, token].add(1)

    return run


def by_segments(mask):
    def run(x, segments, h0):
        scores = jnp.where(mask(segments), jnp.einsum("td,sd->ts", x, x), -jnp.inf)
        return jax.nn.softmax(scores, -1) @ finite(x) + h0[jnp.minimum(segments, N - 1)]

    return run


cases(*ADAPTERS, adapters_of_sequences=adapters(own), adapters_of_the_next=Leaks(adapters(next_lane)))
cases(*VERIFY, accepted_drafts=verified(1), accepted_drafts_of_all=Leaks(verified(0)))
cases(*LOGITS, (Lane(), Lane()), counts_of_tokens=counted(jnp.arange(N)),
      counts_of_tokens_reversed=Leaks(counted(jnp.arange(N)[::-1])))  # fmt: skip
cases(
    *SEGMENTS,
    attention_by_segments=by_segments(lambda s: (s[:, None] == s[None]) & causal),
    attention_of_earlier_segments=Leaks(by_segments(lambda s: (s[:, None] >= s[None]) & causal)),
)
cases(*COPIES, forked_rows=lambda pool, read, write: pool.at[write].set(pool[read]),
      forked_rows_of_the_next=Leaks(lambda pool, read, write: pool.at[write].set(pool[jnp.roll(read, 1)])))  # fmt: skip
cases(*POOL, sums_of_tokens=lambda pool, s, x, c: pool.at[s[own(c)]].add(jnp.where((t < c[-1])[:, None], x, 0)),
      sums_of_tokens_past_the_end=lambda pool, s, x, c: (
          pool.at[jnp.where(ids(c) < N, s[own(c)], ROWS)].add(x, mode="drop")),
      sums_of_tokens_and_of_one_more=Leaks(
          lambda pool, s, x, c: pool.at[s[own(c)]].add(jnp.where((t <= c[-1])[:, None], x, 0))),
      sums_of_tokens_with_padding=Leaks(lambda pool, s, x, c: pool.at[s[own(c)]].add(x)))  # fmt: skip
NOT_PROVED = OLDER | {
    "attention_with_a_finite_mask": FalseAlarm(
        "no bound of the scores: one below the mask, as minus infinity, gives other lanes all the weight",
        "attention_by_ids"),
}  # fmt: skip
"""Steps that do not leak and are refused."""
