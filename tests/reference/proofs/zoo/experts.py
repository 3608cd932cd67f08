"""Mixtures of experts behind a small recurrence: dense, gathered, and sorted for grouped products."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import HIDDEN, LANES, SLOTS, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

EXPERTS, TOP, INNER = 5, 2, 6
CONTRACT = LaneContract(inputs=(Shared(), Pool("ema"), SlotMap("ema", SLOTS), Lane()), outputs=(Lane(), Pool("ema")))


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    w = {
        "router": 3 * weight(rng, HIDDEN, EXPERTS),
        "up": weight(rng, EXPERTS, HIDDEN, INNER),
        "down": weight(rng, EXPERTS, INNER, HIDDEN),
    }
    return w, normal(rng, SLOTS, HIDDEN), slot_map(rng), normal(rng, LANES, HIDDEN)


def recur(pool: Array, slots: Array, x: Array) -> tuple[Array, Array]:
    rows = 0.9 * pool[slots] + x
    return jnp.tanh(rows), pool.at[slots].set(rows)


def route(w: Any, x: Array) -> tuple[Array, Array]:
    """Weights and ids of the experts of each row."""
    chosen, expert = lax.top_k(jax.nn.softmax(x @ w["router"], axis=-1), TOP)
    return chosen / chosen.sum(axis=-1, keepdims=True), expert


def mixture(mix: Callable[[Any, Array, Array, Array], Array]) -> Any:
    """Return a step: `mix` of weights, rows, and the weights and ids of each row's experts."""

    def step(w, pool, slots, x):
        x, pool = recur(pool, slots, x)
        return mix(w, x, *route(w, x)), pool

    return step


@mixture
def dense_step(w, x, chosen, expert):
    """Every expert for every row; those that were not chosen have weight zero."""
    share = jnp.zeros((x.shape[0], EXPERTS)).at[jnp.arange(x.shape[0])[:, None], expert].add(chosen)
    hidden = jax.nn.silu(jnp.einsum("nd,edf->nef", x, w["up"]))
    return x + jnp.einsum("nef,efd,ne->nd", hidden, w["down"], share)


@mixture
def one_hot_step(w, x, chosen, expert):
    """The same by one-hot vectors, in a scan over experts."""
    share = (jax.nn.one_hot(expert, EXPERTS) * chosen[..., None]).sum(1)

    def add(total, inputs):
        up, down, share = inputs
        return total + share[:, None] * (jax.nn.silu(x @ up) @ down), None

    return lax.scan(add, x, (w["up"], w["down"], share.T))[0]


@mixture
def gathered_step(w, x, chosen, expert):
    """The matrices of the chosen experts of each row are gathered."""
    hidden = jax.nn.silu(jnp.einsum("nd,nkdf->nkf", x, w["up"][expert]))
    return x + jnp.einsum("nkf,nkfd,nk->nd", hidden, w["down"][expert], chosen)


def vmapped_step(w, pool, slots, x):
    """Authored for one row."""

    def row(state, x):
        state = 0.9 * state + x
        x = jnp.tanh(state)
        chosen, expert = lax.top_k(jax.nn.softmax(w["router"].T @ x), TOP)
        hidden = jax.nn.silu(jnp.einsum("d,kdf->kf", x, w["up"][expert]))
        return x + jnp.einsum("kf,kfd,k->d", hidden, w["down"][expert], chosen / chosen.sum()), state

    y, rows = jax.vmap(row)(pool[slots], x)
    return y, pool.at[slots].set(rows)


def grouped(w: Any, rows: Array, sizes: Array) -> Array:
    return lax.ragged_dot(jax.nn.silu(lax.ragged_dot(rows, w["up"], sizes)), w["down"], sizes)


def ordered(change: Callable[[jax.Array, jax.Array], jax.Array] = lambda rows, order: rows) -> Any:
    """Rows sorted by expert, changed, a grouped product, and back by the argsort of the argsort."""

    def mix(w, x, chosen, expert):
        flat = expert.reshape(-1)
        order = jnp.argsort(flat)
        y = grouped(w, change(x[order // TOP], order), jnp.bincount(flat, length=EXPERTS).astype(jnp.int32))
        y = y[jnp.argsort(order)].reshape(-1, TOP, HIDDEN)
        return x + jnp.einsum("nkd,nk->nd", y, chosen)

    return mixture(mix)


@mixture
def scattered_step(w, x, chosen, expert):
    """Repeated rows are taken by the sorting permutation, and back by scattering to it."""
    flat = expert.ravel()
    rank, order = lax.sort_key_val(flat, jnp.arange(flat.size, dtype=jnp.int32))
    sizes = jnp.zeros((EXPERTS,), jnp.int32).at[rank].add(1)
    y = grouped(w, jnp.repeat(x, TOP, axis=0)[order], sizes)
    y = jnp.zeros_like(y).at[order].set(y).reshape(-1, TOP, HIDDEN)
    return x + (y * chosen[..., None]).sum(1)


@mixture
def inverse_scatter_step(w, x, chosen, expert):
    """The inverse permutation is written by a scatter of `arange`, and used by a gather."""
    flat = expert.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    lane = jnp.repeat(jnp.arange(x.shape[0]), TOP)
    sizes = jnp.sum(flat[:, None] == jnp.arange(EXPERTS)[None], axis=0, dtype=jnp.int32)
    y = grouped(w, x[lane[order]], sizes)
    inverse = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    return x + jnp.einsum("nkd,nk->nd", y[inverse].reshape(-1, TOP, HIDDEN), chosen)


@mixture
def summed_step(w, x, chosen, expert):
    """Sorted rows are weighted first and then added up, each at its lane."""
    order = jnp.argsort(expert.reshape(-1))
    y = grouped(w, x[order // TOP], jnp.bincount(expert.reshape(-1), length=EXPERTS).astype(jnp.int32))
    return x.at[order // TOP].add(y * chosen.reshape(-1)[order][:, None])


PROGRAMS = (
    Program("dense experts", dense_step, CONTRACT, draw),
    Program("dense experts in a scan", one_hot_step, CONTRACT, draw),
    Program("gathered experts", gathered_step, CONTRACT, draw),
    Program("gathered experts, vmapped", vmapped_step, CONTRACT, draw),
    Program("sorted experts, argsort of argsort", ordered(), CONTRACT, draw),
    Program("sorted experts, scattered back", scattered_step, CONTRACT, draw),
    Program("sorted experts, inverse by scatter", inverse_scatter_step, CONTRACT, draw),
    Program("sorted experts, added up at their lanes", summed_step, CONTRACT, draw),
)
