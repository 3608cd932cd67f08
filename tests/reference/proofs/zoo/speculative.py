"""Speculative decoding: states of W drafts per sequence, and replay of accepted tokens."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import HIDDEN, KEY, LANES, SLOTS, VALUE, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

DRAFTS = 5
WIDTH = 2 * KEY + VALUE
GROUPS = LaneContract(
    inputs=(Shared(), Pool("spec"), SlotMap("spec", SLOTS), Lane(role="accepted"), Lane()),
    outputs=(Lane(), Pool("spec")),
)
REPLAY = LaneContract(
    inputs=(Shared(), (Pool("spec"), Pool("spec")), SlotMap("spec", SLOTS), Lane(role="accepted"), Lane()),
    outputs=(Lane(), (Pool("spec"), Pool("spec"))),
)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    accepted = rng.integers(0, DRAFTS + 1, LANES).astype(np.int32)
    drafts = normal(rng, LANES, DRAFTS, HIDDEN)
    return weight(rng, WIDTH, HIDDEN), normal(rng, SLOTS, DRAFTS, KEY, VALUE), slot_map(rng), accepted, drafts


def draw_replay(rng: np.random.Generator) -> tuple[Any, ...]:
    w, _, *rest = draw(rng)
    return (w, (normal(rng, SLOTS, KEY, VALUE), normal(rng, SLOTS, DRAFTS, HIDDEN)), *rest)


def token(w: Array, state: Array, x: Array) -> tuple[Array, Array]:
    """One token of all lanes: state [N, K, V], x [N, D]."""
    q, k, v = jnp.split(x @ w.T, [KEY, 2 * KEY], axis=-1)
    state = 0.9 * state + k[:, :, None] * v[:, None, :]
    return state, jnp.einsum("nkv,nk->nv", state, q)


def groups_step(w, pool, slots, accepted, drafts):
    """A row has W states; the last accepted one begins the next W."""
    last = jnp.where(accepted > 0, accepted - 1, DRAFTS - 1)
    state = jnp.take_along_axis(pool[slots], last[:, None, None, None], axis=1, mode="promise_in_bounds")[:, 0]

    def body(state, x):
        state, y = token(w, state, x)
        return state, (state, y)

    _, (states, y) = lax.scan(body, state, jnp.swapaxes(drafts, 0, 1))
    return jnp.swapaxes(y, 0, 1), pool.at[slots].set(jnp.swapaxes(states, 0, 1))


def offset_step(w, pool, slots, accepted, drafts):
    """The same with the offset in the index, and W unrolled writes."""
    state = pool[slots, jnp.clip(accepted - 1, 0, DRAFTS - 1)]
    out = []
    for i in range(DRAFTS):
        state, y = token(w, state, drafts[:, i])
        pool = pool.at[slots, i].set(state)
        out.append(y)
    return jnp.stack(out, axis=1), pool


def vmapped_step(w, pool, slots, accepted, drafts):
    """Authored for one lane."""

    def lane(states, accepted, drafts):
        state = states[jnp.maximum(accepted, 1) - 1]

        def body(state, x):
            state, y = token(w, state[None], x[None])
            return state[0], (state[0], y[0])

        return lax.scan(body, state, drafts)[1]

    states, y = jax.vmap(lane)(pool[slots], accepted, drafts)
    return y, pool.at[slots].set(states)


def replay_step(w, pools, slots, accepted, drafts):
    """State and inputs are stored; accepted inputs are replayed before new drafts."""
    states, saved = pools

    def replay(state, inputs):
        i, x = inputs
        return jnp.where((i < accepted)[:, None, None], token(w, state, x)[0], state), None

    tokens = jnp.arange(DRAFTS, dtype=jnp.int32)
    state, _ = lax.scan(replay, states[slots], (tokens, saved[slots].transpose(1, 0, 2)))
    _, y = lax.scan(lambda state, x: token(w, state, x), state, drafts.transpose(1, 0, 2))
    return y.transpose(1, 0, 2), (states.at[slots].set(state), saved.at[slots].set(drafts))


PROGRAMS = (
    Program("speculative groups", groups_step, GROUPS, draw),
    Program("speculative groups, offset in the index", offset_step, GROUPS, draw),
    Program("speculative groups, vmapped", vmapped_step, GROUPS, draw),
    Program("speculative replay", replay_step, REPLAY, draw_replay),
)
