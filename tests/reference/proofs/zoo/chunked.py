"""Several tokens of each lane in one step, padded behind the lane's length."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import HIDDEN, KEY, LANES, SLOTS, TAPS, TOKENS, VALUE, Program, normal, ragged, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

WIDTH = 2 * KEY + VALUE
POOLS = {"conv": Pool("seq"), "state": Pool("seq", dims=("slot", "key", "value"))}
CONTRACT = LaneContract(
    inputs=(Shared(), POOLS, SlotMap("seq", SLOTS), Lane(), Lane(role="length"), Lane()), outputs=(Lane(), POOLS)
)
ROWS = LaneContract(inputs=(Shared(), POOLS, Lane(), Lane(role="length"), Lane()), outputs=(Lane(), POOLS))


def weights(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return weight(rng, WIDTH, HIDDEN), weight(rng, TAPS, WIDTH), weight(rng, HIDDEN)


def pools(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    return {"conv": normal(rng, rows, TAPS - 1, WIDTH), "state": normal(rng, rows, KEY, VALUE)}


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    slots = slot_map(rng)
    lengths = np.where(slots == 0, 0, ragged(rng)).astype(np.int32)
    positions = rng.integers(0, 3, LANES).astype(np.int32)
    return weights(rng), pools(rng, SLOTS), slots, normal(rng, LANES, TOKENS, HIDDEN), lengths, positions


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    w, _, _, *rest = draw(rng)
    return (w, pools(rng, LANES), *rest)


def mix(w: Any, conv: Array, x: Array, lengths: Array) -> tuple[Array, Array]:
    """The short convolution over real tokens and its new tail."""
    real = jnp.arange(TOKENS, dtype=jnp.int32)[None] < lengths[:, None]
    window = jnp.concatenate([conv, jnp.where(real[..., None], x @ w[0].T, 0.0)], axis=1)
    mixed = sum(window[:, i : i + TOKENS] * w[1][i][None, None] for i in range(TAPS))
    last = lengths[:, None] + jnp.arange(TAPS - 1, dtype=jnp.int32)[None]
    return jax.nn.silu(mixed), jnp.take_along_axis(window, last[:, :, None], axis=1)


def scan_tokens(w: Any, state: Array, x: Array, mixed: Array, lengths: Array) -> tuple[Array, Array]:
    """Token by token; padding tokens leave the state unchanged."""

    def token(state, inputs):
        i, x, mixed = inputs
        q, k, v = jnp.split(mixed, [KEY, 2 * KEY], axis=-1)
        decay = jax.nn.sigmoid(x @ w[2])[:, None, None]
        new = decay * state + k[:, :, None] * v[:, None, :]
        state = jnp.where((i < lengths)[:, None, None], new, state)
        return state, jnp.einsum("nkv,nk->nv", state, q)

    over = jnp.arange(TOKENS, dtype=jnp.int32), jnp.swapaxes(x, 0, 1), jnp.swapaxes(mixed, 0, 1)
    state, y = lax.scan(token, state, over)
    return state, jnp.swapaxes(y, 0, 1)


def at_once(w: Any, state: Array, x: Array, mixed: Array, lengths: Array) -> tuple[Array, Array]:
    """All tokens in one product: decays are exponentials of differences of cumulative sums."""
    real = jnp.arange(TOKENS, dtype=jnp.int32)[None] < lengths[:, None]
    q, k, v = (jnp.where(real[..., None], y, 0.0) for y in jnp.split(mixed, [KEY, 2 * KEY], axis=-1))
    total = jnp.cumsum(jnp.where(real, jax.nn.log_sigmoid(jnp.where(real[..., None], x, 0.0) @ w[2]), 0.0), axis=1)
    lower = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))[None]
    between = jnp.exp(jnp.where(lower, total[:, :, None] - total[:, None, :], -jnp.inf))
    y = jnp.einsum("nik,njk,nij,njv->niv", q, k, between, v)
    y = y + jnp.einsum("nik,nkv,ni->niv", q, state, jnp.exp(total))
    new = jnp.exp(total[:, -1])[:, None, None] * state
    new = new + jnp.einsum("njk,njv,nj->nkv", k, v, jnp.exp(total[:, -1:] - total))
    return jnp.where((lengths > 0)[:, None, None], new, state), y


def scanned_step(w, pools, slots, x, lengths, positions):
    """Behind a slot map; position 0 begins from zero, idle lanes keep rows."""
    fresh = (positions == 0) & (lengths > 0)
    old = jax.tree.map(lambda pool: pool[slots], pools)
    conv = jnp.where(fresh[:, None, None], 0.0, old["conv"])
    state = jnp.where(fresh[:, None, None], 0.0, old["state"])
    mixed, conv = mix(w, conv, x, lengths)
    state, y = scan_tokens(w, state, x, mixed, lengths)
    new = {"conv": jnp.where((lengths > 0)[:, None, None], conv, old["conv"]), "state": state}
    return y, jax.tree.map(lambda pool, rows: pool.at[slots].set(rows), pools, new)


def rows_step(w, pools, x, lengths, positions):
    """Row pools, all tokens at once."""
    fresh = ((positions == 0) & (lengths > 0))[:, None, None]
    mixed, conv = mix(w, jnp.where(fresh, 0.0, pools["conv"]), x, lengths)
    state, y = at_once(w, jnp.where(fresh, 0.0, pools["state"]), x, mixed, lengths)
    alive = (lengths > 0)[:, None, None]
    return y, {"conv": jnp.where(alive, conv, pools["conv"]), "state": jnp.where(alive, state, pools["state"])}


def chunks_step(w, pools, x, lengths, positions):
    """A scan over chunks, each a single product over its tokens."""
    count = 2
    x = jnp.tile(x, (1, count, 1)).reshape(-1, count, TOKENS, HIDDEN).transpose(1, 0, 2, 3)

    def chunk(pools, inputs):
        i, x = inputs
        y, pools = rows_step(w, pools, x, jnp.clip(count * lengths - i * TOKENS, 0, TOKENS), positions + i * TOKENS)
        return pools, y

    pools, y = lax.scan(chunk, pools, (jnp.arange(count, dtype=jnp.int32), x))
    return y.transpose(1, 0, 2, 3).reshape(-1, count * TOKENS, VALUE), pools


def vmapped_step(w, pools, x, lengths, positions):
    """Written for one lane, with a cond that `vmap` turns into `select`."""

    def lane(pools, x, length, position):
        def go(pools):
            y, new = rows_step(w, jax.tree.map(lambda a: a[None], pools), x[None], length[None], position[None])
            return y[0], jax.tree.map(lambda a: a[0], new)

        return lax.cond(length > 0, go, lambda pools: (jnp.zeros((TOKENS, VALUE)), pools), pools)

    return jax.vmap(lane)(pools, x, lengths, positions)


PROGRAMS = (
    Program("chunk, token by token", scanned_step, CONTRACT, draw),
    Program("chunk at once", rows_step, ROWS, draw_rows),
    Program("scan over chunks", chunks_step, ROWS, draw_rows),
    Program("chunk at once, vmapped", vmapped_step, ROWS, draw_rows),
)
