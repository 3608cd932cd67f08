"""Gated DeltaNet with a short convolution behind a slot map: three forms of a step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import HEADS, HIDDEN, KEY, LANES, SLOTS, TAPS, VALUE, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

CHANNELS = HEADS * (2 * KEY + VALUE)
POOLS = {"conv": Pool("seq"), "state": Pool("seq", dims=("slot", "head", "key", "value"))}
CONTRACT = LaneContract(inputs=(Shared(), POOLS, SlotMap("seq", SLOTS), Lane()), outputs=(Lane(), POOLS))
FRESH = LaneContract(inputs=(*CONTRACT.inputs, Lane()), outputs=CONTRACT.outputs)
ROWS = LaneContract(inputs=(Shared(), POOLS, Lane()), outputs=(Lane(), POOLS))
IDLE = LaneContract(inputs=(Shared(), POOLS, Lane(), Lane(role="length")), outputs=(Lane(), POOLS))


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "qkv": weight(rng, CHANNELS, HIDDEN),
        "gates": weight(rng, 2 * HEADS, HIDDEN),
        "conv": weight(rng, CHANNELS, TAPS),
        "out": weight(rng, HIDDEN, HEADS * VALUE),
    }


def pools(rng: np.random.Generator, rows: int = SLOTS) -> dict[str, np.ndarray]:
    return {"conv": normal(rng, rows, TAPS - 1, CHANNELS), "state": normal(rng, rows, HEADS, KEY, VALUE)}


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return weights(rng), pools(rng), slot_map(rng), normal(rng, LANES, HIDDEN)


def draw_fresh(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*draw(rng), rng.random(LANES) < 0.5)


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    return weights(rng), pools(rng, LANES), normal(rng, LANES, HIDDEN)


def draw_idle(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*draw_rows(rng), rng.integers(0, 2, LANES).astype(np.int32))


def delta(w: Any, conv: Array, state: Array, x: Array) -> tuple[Array, Array, Array]:
    """One token of N lanes: outputs, convolution inputs, state."""
    lanes = x.shape[0]
    window = jnp.concatenate([conv, (x @ w["qkv"].T)[:, None]], axis=1)
    mixed = jax.nn.silu(jnp.einsum("ntc,ct->nc", window, w["conv"]))
    q, k, v = jnp.split(mixed, [HEADS * KEY, 2 * HEADS * KEY], axis=-1)
    q, k = (y.reshape(lanes, HEADS, KEY) for y in (q, k))
    q, k = (y * lax.rsqrt(jnp.sum(y * y, axis=-1, keepdims=True) + 1e-6) for y in (q, k))
    v = v.reshape(lanes, HEADS, VALUE)
    decay, beta = jnp.split(jax.nn.sigmoid(x @ w["gates"].T), 2, axis=-1)
    state = decay[:, :, None, None] * state
    error = beta[:, :, None] * (v - jnp.einsum("nhkv,nhk->nhv", state, k))
    state = state + k[:, :, :, None] * error[:, :, None, :]
    out = jnp.einsum("nhkv,nhk->nhv", state, q).reshape(lanes, HEADS * VALUE)
    return out @ w["out"].T, window[:, 1:], state


def slots_step(w, pools, slots, x):
    y, conv, state = delta(w, pools["conv"][slots], pools["state"][slots], x)
    return y, {"conv": pools["conv"].at[slots].set(conv), "state": pools["state"].at[slots].set(state)}


def one_lane(w: Any, conv: Array, state: Array, x: Array) -> tuple[Array, Array, Array]:
    """The same for one lane that knows of no other."""
    window = jnp.vstack([conv, (w["qkv"] @ x)[None]])
    mixed = jax.nn.silu((window * w["conv"].T).sum(0))
    q, k, v = mixed[: HEADS * KEY], mixed[HEADS * KEY : 2 * HEADS * KEY], mixed[2 * HEADS * KEY :]
    q, k, v = q.reshape(HEADS, KEY), k.reshape(HEADS, KEY), v.reshape(HEADS, VALUE)
    q, k = (y / jnp.linalg.norm(y, axis=-1, keepdims=True) for y in (q, k))
    decay, beta = jax.nn.sigmoid(w["gates"] @ x).reshape(2, HEADS)
    state = state * decay[:, None, None]
    state = state + jnp.einsum("hk,hv->hkv", k, beta[:, None] * (v - jnp.einsum("hk,hkv->hv", k, state)))
    return w["out"] @ jnp.einsum("hk,hkv->hv", q, state).ravel(), window[1:], state


def vmapped_step(w, pools, slots, x):
    """Rows gathered and scattered outside of the vmap."""
    rows = jax.tree.map(lambda pool: pool.at[slots].get(mode="promise_in_bounds"), pools)
    y, conv, state = jax.vmap(one_lane, in_axes=(None, 0, 0, 0))(w, rows["conv"], rows["state"], x)
    new = {"conv": conv, "state": state}
    return y, jax.tree.map(lambda pool, row: pool.at[slots].set(row, mode="promise_in_bounds"), pools, new)


def unbatched_step(w, pools, slots, x):
    """The vmap takes the pool unbatched, and each lane reads its row."""

    def lane(slot, x):
        return one_lane(w, pools["conv"][slot], lax.dynamic_index_in_dim(pools["state"], slot, 0, keepdims=False), x)

    y, conv, state = jax.vmap(lane)(slots, x)
    return y, {"conv": pools["conv"].at[slots].set(conv), "state": pools["state"].at[slots].set(state)}


def fresh_step(w, pools, slots, x, fresh):
    """Lanes that begin start from zero, by `where`."""
    conv = jnp.where(fresh[:, None, None], 0.0, pools["conv"][slots])
    state = jnp.where(fresh[:, None, None, None], jnp.zeros((), jnp.float32), pools["state"][slots])
    y, conv, state = delta(w, conv, state, x)
    return y, {"conv": pools["conv"].at[slots].set(conv), "state": pools["state"].at[slots].set(state)}


def rows_step(w, pools, x):
    """One row per lane, no slot map."""
    y, conv, state = delta(w, pools["conv"], pools["state"], x)
    return y, {"conv": conv, "state": state}


def idle_step(w, pools, x, lengths):
    """Lanes without a token keep their rows bit for bit."""
    y, conv, state = delta(w, pools["conv"], pools["state"], jnp.where((lengths > 0)[:, None], x, 0.0))
    alive = lengths > 0
    new = {
        "conv": jnp.where(alive[:, None, None], conv, pools["conv"]),
        "state": lax.select(jnp.broadcast_to(alive[:, None, None, None], state.shape), state, pools["state"]),
    }
    return jnp.where(alive[:, None], y, 0.0), new


def vmapped_rows_step(w, pools, x, lengths):
    def lane(conv, state, x, length):
        y, *new = one_lane(w, conv, state, x)
        conv, state = (jnp.where(length > 0, a, b) for a, b in zip(new, (conv, state), strict=True))
        return y, {"conv": conv, "state": state}

    return jax.vmap(lane)(pools["conv"], pools["state"], x, lengths)


PROGRAMS = (
    Program("gated delta", slots_step, CONTRACT, draw),
    Program("gated delta, vmapped over gathered rows", vmapped_step, CONTRACT, draw),
    Program("gated delta, vmapped with the pool unbatched", unbatched_step, CONTRACT, draw),
    Program("gated delta, fresh lanes from zero", fresh_step, FRESH, draw_fresh),
    Program("gated delta, row pools", rows_step, ROWS, draw_rows),
    Program("gated delta, idle lanes", idle_step, IDLE, draw_idle),
    Program("gated delta, idle lanes, vmapped", vmapped_rows_step, IDLE, draw_idle),
)
