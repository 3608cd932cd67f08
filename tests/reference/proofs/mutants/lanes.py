"""Mutants that mix lanes: sums, sorts, reshapes and strides over them, branches on them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from mutants.mutant import Evidence, Kind, wrong
from zoo import chunked, gated_delta, rows
from zoo.attention import BLOCK, blocks_step
from zoo.chunked import KEY, TAPS, TOKENS
from zoo.program import HIDDEN, LANES
from zoo.rows import advance

PLAIN = "rows behind a slot map"
MIXED = (Kind.CROSS_LANE,)
BRANCH = (Kind.CROSS_LANE, Kind.CONTROL)


def after(change: Any) -> Any:
    """The plain step with its output changed."""

    def step(pool, slots, x, w):
        y, pool = rows.plain_step(pool, slots, x, w)
        return change(y), pool

    return step


def before(change: Any) -> Any:
    """The plain step with its input changed."""
    return lambda pool, slots, x, w: rows.plain_step(pool, slots, change(x), w)


_cumulative = lambda x: jnp.cumsum(x, axis=0)
_normalised = lambda x: x / jnp.sqrt(jnp.mean(x * x))
_loop_until_all_are_done = lambda y: lax.while_loop(lambda y: jnp.max(jnp.abs(y)) > 0.1, lambda y: 0.5 * y, y)
_any_branch = lambda y: lax.cond(jnp.any(y > 3.0), lambda y: 0.5 * y, lambda y: y, y)
_first_index_for_all = lambda y: y[jnp.broadcast_to(jnp.arange(LANES, dtype=jnp.int32)[:1], (LANES,))]


def _strided(x: Array) -> Array:
    """Rows of a wider projection, read one narrow row after the other."""
    wide = jnp.concatenate([x, 2.0 * x], axis=1).reshape(-1)
    return jnp.stack([lax.dynamic_slice(wide, (i * HIDDEN,), (HIDDEN,)) for i in range(LANES)])


def doubled_by_a_branch(pool, slots, x, w):
    """Lane 0's branch decides the values of the pool."""
    read = lax.cond(x[0, 0] > 0, lambda pool: 2.0 * pool, lambda pool: pool, pool)
    new = advance(read[slots], x, w)
    return new.sum(1), pool.at[slots].set(new)


def doubled_by_a_loop(pool, slots, x, w):
    """Lane 0 decides how often the pool is doubled before it is read."""
    begin = jnp.float32(-2), pool
    _, read = lax.while_loop(lambda carry: carry[0] < x[0, 0], lambda carry: (carry[0] + 1, 2.0 * carry[1]), begin)
    new = advance(read[slots], x, w)
    return new.sum(1), pool.at[slots].set(new)


def one_hot_rows(pool, slots, x, w):
    """Rows gathered and scattered by products with a one-hot matrix: zero times NaN is NaN."""
    chosen = jax.nn.one_hot(slots, len(pool))
    new = advance(jnp.einsum("ns,skv->nkv", chosen, pool), x, w)
    saved = 1.0 - jnp.minimum(chosen.sum(0), 1.0)
    return new.sum(1), saved[:, None, None] * pool + jnp.einsum("ns,nkv->skv", chosen, new)


def random_key_of_all(pool, slots, x, w):
    key = jax.random.key(jnp.sum(x).astype(jnp.int32))
    y, pool = rows.plain_step(pool, slots, x, w)
    return y + jax.random.normal(key, y.shape), pool


def permuted(
    w: Any, pools: Any, x: Array, lengths: Array, gates_too: bool, inverted: bool, repeated: bool = False
) -> Any:
    """Lanes with a token first, computed in that order, then put back."""
    order = jnp.argsort(lengths, descending=True)
    inverse = jnp.argsort(order)
    if repeated:
        order = order[order]
    tree = jax.tree.map(lambda leaf: leaf[order], pools)
    mixed, length = x[order], lengths[order] if gates_too else lengths
    y, new = gated_delta.idle_step(w, tree, mixed, length)
    return (y[inverse] if inverted else y), jax.tree.map(lambda leaf: leaf[inverse], new)


def flattened_sums(w, pools, x, lengths, positions):
    """The sum of log-decays runs on from one lane's tokens to the next lane's."""
    _, mixed = tokens(w, pools, x, lengths, positions)
    log = jax.nn.log_sigmoid(x @ w[2])
    total = jnp.cumsum(log.reshape(-1)).reshape(LANES, TOKENS)
    v = mixed[..., 2 * KEY :]
    return v * jnp.exp(total)[..., None], chunked.rows_step(w, pools, x, lengths, positions)[1]


def tokens(w: Any, pools: Any, x: Array, lengths: Array, positions: Array) -> Any:
    return chunked.mix(w, pools["conv"], x, lengths)[1], chunked.mix(w, pools["conv"], x, lengths)[0]


def flattened_chunks(w, pools, x, lengths, positions):
    """Chunks of four tokens of the flattened batch, where lanes have five."""
    y, pools = chunked.rows_step(w, pools, x, lengths, positions)
    chunks = y.reshape(-1, 4, y.shape[-1])
    return (chunks - chunks.mean(1, keepdims=True)).reshape(y.shape), pools


def packed_convolution(w, pools, x, lengths, positions):
    """All lanes' tokens as one sequence: the convolution reaches into the lane before."""
    y, pools = chunked.rows_step(w, pools, x, lengths, positions)
    flat = jnp.pad((x @ w[0].T).reshape(LANES * TOKENS, -1), ((TAPS - 1, 0), (0, 0)))
    mixed = jnp.stack([flat[i : i + LANES * TOKENS] * w[1][i][None] for i in range(TAPS)]).sum(0)
    return y + mixed.reshape(LANES, TOKENS, -1)[..., : y.shape[-1]], pools


def uniform_path(w, pools, x, lengths, positions):
    """A decode-like batch takes a path where no lane starts from zero."""
    uniform = jnp.all(lengths < TOKENS)
    return lax.cond(
        uniform,
        lambda: chunked.rows_step(w, pools, x, lengths, jnp.ones_like(positions)),
        lambda: chunked.rows_step(w, pools, x, lengths, positions),
    )


def shortest_lane(w, pools, x, lengths, positions):
    """One threshold for all lanes, the smallest."""
    cut = jnp.minimum(lengths, jnp.where(jnp.min(lengths) < 1, 3, TOKENS))
    return chunked.rows_step(w, pools, x, cut, positions)


def bound_from_positions(w, pools, slots, positions, x, blocks):
    """The number of blocks is taken from the positions of all lanes in the step."""
    return blocks_step(w, pools, slots, positions, x, jnp.max(positions) // BLOCK + 1)


def _idle(id: str, source: str, description: str, **how: bool) -> Any:
    step = lambda w, pools, x, lengths: permuted(w, pools, x, lengths, **how)
    return wrong("gated delta, idle lanes", id, source, description, step, *MIXED, Kind.WRONG_ROW)


def _plain(id: str, source: str, description: str, step: Any, *kinds: Kind, **options: Any) -> Any:
    return wrong(PLAIN, id, source, description, step, *(kinds or MIXED), **options)


LIST = "JAX"
MUTANTS = (
    _plain("roll", LIST, "outputs rolled by one lane", after(lambda y: jnp.roll(y, 1, axis=0))),
    _plain("reverse", LIST, "outputs in reverse order", after(lambda y: y[::-1])),
    _plain("meets-reversed", LIST, "outputs meet those of the lanes in reverse order", after(lambda y: y + y[::-1])),
    _plain("batch-mean", LIST, "the mean over lanes is subtracted", before(lambda x: x - x.mean(0, keepdims=True))),
    _plain("lane-0-for-all", LIST, "lane 0 is broadcast", after(lambda y: jnp.broadcast_to(y[:1], y.shape))),
    _plain("last-lane-for-all", "Atlas#101", "all lanes get the last lane's logits", after(lambda y: 0.0 * y + y[-1:])),
    _plain("two-rows-swapped", "Atlas#101", "lanes 0 and 1 swap their outputs",
           after(lambda y: y.at[:2].set(y[1::-1]))),
    _plain("cumulative-sum", LIST, "a cumulative sum over lanes", before(_cumulative)),
    _plain("softmax-over-lanes", LIST, "softmax over the wrong axis", after(lambda y: jax.nn.softmax(y, axis=0))),
    _plain("k-major-reshape", LIST, "lanes and channels merged in the wrong order",
           before(lambda x: jnp.stack([x, 2 * x]).reshape(LANES, 2, HIDDEN).sum(1))),
    _plain("transposed-stride", "mistral.rs#2357", "a transposed array read as if it were not",
           before(lambda x: x.T.reshape(LANES, HIDDEN))),
    _plain("row-stride", "Atlas#214", "rows of a wider projection read with a narrow stride", before(_strided)),
    _plain("gram-matrix", LIST, "x @ x.T @ x", before(lambda x: x @ x.T @ x)),
    _plain("norm-over-the-batch", LIST, "a norm over all elements of the batch", before(_normalised)),
    _plain("maximum-over-lanes", LIST, "one scale for the batch", before(lambda x: x / jnp.max(jnp.abs(x)))),
    _plain("sorted-lanes", LIST, "outputs sorted over lanes", after(lambda y: jnp.sort(y, axis=0))),
    _plain("one-hot-rows", "JAX", "rows by one-hot products: zero times NaN", one_hot_rows, *MIXED, Kind.FRAME,
           Kind.WRONG_ROW),
    _plain("any-branch", LIST, "a branch on any lane", after(_any_branch), *BRANCH),
    _plain("loop-until-all-are-done", LIST, "a loop until the last lane is done", after(_loop_until_all_are_done),
           *BRANCH),
    _plain("key-of-all-lanes", "JAX", "the random key is made of all lanes' inputs", random_key_of_all),
    _plain("first-index-for-all", LIST, "the first of the lanes' numbers is stretched", after(_first_index_for_all)),
    _plain("doubled-by-a-branch", LIST, "a branch on lane 0 chooses a pool", doubled_by_a_branch, *BRANCH),
    _plain("doubled-by-a-loop", LIST, "a loop of lane 0's length over a pool", doubled_by_a_loop, *BRANCH),
    _idle("gates-not-permuted", "vLLM#51812", "inputs are permuted, gates are not", gates_too=False, inverted=True),
    _idle("not-put-back", "vLLM#40766", "lanes are split in one order and joined in another", gates_too=True,
          inverted=False),
    _idle("permuted-twice", "vLLM#53919", "permuted twice, put back once", gates_too=True, inverted=True,
          repeated=True),
    wrong("chunk at once", "sums-over-the-flat-batch", "vLLM#23279", "decays summed from the start of the batch",
          flattened_sums, *MIXED),
    wrong("chunk at once", "chunks-of-the-flat-batch", "SGLang#31833", "the grid of chunks lies over the flat batch",
          flattened_chunks, *MIXED),
    wrong("chunk at once", "packed-convolution", "Automodel#2147", "packed lanes run as one sequence",
          packed_convolution, *MIXED),
    wrong("chunk at once", "uniform-path", "vLLM#47123", "a batch of short lanes takes another path", uniform_path,
          *BRANCH),
    wrong("chunk at once", "shortest-lane", "vLLM#55894", "one threshold for the batch, from its shortest lane",
          shortest_lane, *BRANCH, Kind.IDLE),
    wrong("attention, blocks in a loop", "bound-from-positions", "design.md",
          "the loop's bound is taken from all positions", bound_from_positions, *BRANCH, evidence=Evidence.FAULT),
)  # fmt: skip
