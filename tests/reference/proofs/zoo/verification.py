"""Draft verification: accept drafts that equal samples, and replay exactly those."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from zoo import chunked
from zoo.chunked import at_once, mix, scan_tokens
from zoo.program import HIDDEN, LANES, TOKENS, VALUE, Program, ragged, weight

from ir_passes import Lane, LaneContract, Pool, Shared

VOCABULARY = 3
POOLS = {"conv": Pool("seq"), "state": Pool("seq", dims=("slot", "key", "value")), "last": Pool("seq")}
COUNT = Lane(role="accepted")
CONTRACT = LaneContract(
    inputs=(Shared(), POOLS, Lane(), Lane(role="length")), outputs=({"tokens": Lane(), "accepted": COUNT}, POOLS)
)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    """Few words, so that drafts are often right."""
    w = {"mixer": chunked.weights(rng), "embed": weight(rng, VOCABULARY, HIDDEN), "out": weight(rng, VOCABULARY, VALUE)}
    pools = chunked.pools(rng, LANES) | {"last": rng.integers(0, VOCABULARY, (LANES, 1)).astype(np.int32)}
    return w, pools, rng.integers(0, VOCABULARY, (LANES, TOKENS)).astype(np.int32), ragged(rng)


def attempt(w: Any, pools: Any, tokens: Array, lengths: Array) -> tuple[Array, Array, Array]:
    """Return the recurrence's inputs and sampled next tokens, [N, T, ...]."""
    x = w["embed"][tokens]
    mixed, _ = mix(w["mixer"], pools["conv"], x, lengths)
    _, y = at_once(w["mixer"], pools["state"], x, mixed, lengths)
    return x, mixed, jnp.argmax(y @ w["out"].T, axis=-1).astype(jnp.int32)


def count(tokens: Array, sampled: Array, lengths: Array) -> Array:
    """Count the first token and the drafts before the first mismatch."""
    drafted = jnp.arange(1, TOKENS, dtype=jnp.int32)[None] < lengths[:, None]
    right = (tokens[:, 1:] == sampled[:, :-1]) & drafted
    return jnp.where(lengths > 0, 1 + jnp.sum(jnp.cumprod(right.astype(jnp.int32), axis=1), axis=1), 0)


def replay(w: Any, pools: Any, x: Array, mixed: Array, sampled: Array, accepted: Array) -> dict[str, Array]:
    """The pools after the accepted tokens."""
    _, conv = mix(w["mixer"], pools["conv"], x, accepted)
    state, _ = scan_tokens(w["mixer"], pools["state"], x, mixed, accepted)
    last = jnp.take_along_axis(sampled, jnp.maximum(accepted - 1, 0)[:, None], axis=1, mode="clip")
    alive = (accepted > 0)[:, None]
    return {
        "conv": jnp.where(alive[:, :, None], conv, pools["conv"]),
        "state": state,
        "last": jnp.where(alive, last, pools["last"]),
    }


def step(w, pools, tokens, lengths):
    """Write accepted tokens only."""
    x, mixed, sampled = attempt(w, pools, tokens, lengths)
    accepted = count(tokens, sampled, lengths)
    return {"tokens": sampled, "accepted": accepted}, replay(w, pools, x, mixed, sampled, accepted)


def one_at_once(w, pools, tokens, lengths):
    """Authored for one lane; the accepted tokens are replayed in one product."""

    def lane(pools, tokens, length):
        pools, tokens, length = jax.tree.map(lambda a: a[None], (pools, tokens, length))
        x, mixed, sampled = attempt(w, pools, tokens, length)
        wrong = jnp.argmin(jnp.pad((tokens[:, 1:] == sampled[:, :-1]), ((0, 0), (0, 1))), axis=1).astype(jnp.int32)
        accepted = jnp.minimum(wrong + 1, length)
        new = replay(w, pools, x, mixed, sampled, accepted)
        state, _ = at_once(w["mixer"], pools["state"], x, mixed, accepted)
        sampled, accepted, new = jax.tree.map(lambda a: a[0], (sampled, accepted, {**new, "state": state}))
        return {"tokens": sampled, "accepted": jnp.maximum(accepted, 0)}, new

    return jax.vmap(lane)(pools, tokens, lengths)


PROGRAMS = (
    Program("drafts verified and replayed", step, CONTRACT, draw),
    Program("drafts verified and replayed, vmapped", one_at_once, CONTRACT, draw),
)
