"""Mamba2-like layers: scalar decays, grouped B and C, a short convolution."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from zoo.program import HIDDEN, LANES, SLOTS, TAPS, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

HEADS, GROUPS, WIDTH, STATE = 6, 2, 3, 5
INNER = HEADS * WIDTH
CHANNELS = INNER + 2 * GROUPS * STATE
POOLS = (Pool("mamba"), Pool("mamba", dims=("slot", "head", "channel", "state")))
CONTRACT = LaneContract(inputs=(POOLS, SlotMap("mamba", SLOTS), Lane(), Lane(), Shared()), outputs=(POOLS, Lane()))


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    params = (
        weight(rng, CHANNELS + INNER + HEADS, HIDDEN), weight(rng, TAPS, CHANNELS), -np.exp(normal(rng, HEADS)),
        normal(rng, HEADS), normal(rng, HEADS), weight(rng, HIDDEN, INNER),
    )  # fmt: skip
    pools = normal(rng, SLOTS, TAPS - 1, CHANNELS), normal(rng, SLOTS, HEADS, WIDTH, STATE)
    return pools, slot_map(rng), rng.random(LANES) < 0.3, normal(rng, LANES, HIDDEN), params


def step(pools, slots, fresh, x, params):
    project, taps, a, skip, bias, out = params
    conv_pool, state_pool = pools
    conv = jnp.where(fresh[:, None, None], 0, jnp.take(conv_pool, slots, axis=0))
    state = jnp.where(fresh[:, None, None, None], 0, jnp.take(state_pool, slots, axis=0))
    z, xbc, dt = jnp.split(x @ project.T, [INNER, INNER + CHANNELS], axis=1)
    conv = jnp.concatenate([conv, xbc[:, None, :]], axis=1)
    xbc = jax.nn.silu(jnp.sum(conv * taps[None], axis=1))
    inner, b, c = jnp.split(xbc, [INNER, INNER + GROUPS * STATE], axis=1)
    inner = inner.reshape(-1, HEADS, WIDTH)
    b, c = (jnp.repeat(y.reshape(-1, GROUPS, STATE), HEADS // GROUPS, axis=1) for y in (b, c))
    dt = jax.nn.softplus(dt + bias[None])
    state = state * jnp.exp(dt * a[None])[..., None, None] + jnp.einsum("nh,nhp,nhs->nhps", dt, inner, b)
    y = jnp.einsum("nhps,nhs->nhp", state, c) + skip[None, :, None] * inner
    y = y.reshape(-1, INNER) * jax.nn.silu(z)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-5)
    pools = conv_pool.at[slots].set(conv[:, 1:]), state_pool.at[slots].set(state, unique_indices=True)
    return pools, y @ out.T


def one_lane(params, conv, state, fresh, x):
    """A single lane; groups of heads by reshaping instead of repeating."""
    project, taps, a, skip, bias, out = params
    conv, state = jnp.where(fresh, 0, conv), jnp.where(fresh, 0, state)
    z, xbc, dt = jnp.split(project @ x, [INNER, INNER + CHANNELS])
    conv = jnp.concatenate([conv, xbc[None]])
    xbc = jax.nn.silu(jnp.einsum("tc,tc->c", conv, taps))
    inner = xbc[:INNER].reshape(GROUPS, HEADS // GROUPS, WIDTH)
    b, c = xbc[INNER:].reshape(2, GROUPS, STATE)
    dt = jnp.logaddexp(dt + bias, 0.0)
    grouped = (GROUPS, HEADS // GROUPS)
    state = state.reshape(*grouped, WIDTH, STATE) * jnp.exp(dt * a).reshape(*grouped, 1, 1)
    state = state + dt.reshape(*grouped, 1, 1) * inner[..., None] * b[:, None, None, :]
    y = jnp.einsum("ghps,gs->ghp", state, c) + skip.reshape(*grouped, 1) * inner
    return (conv[1:], state.reshape(HEADS, WIDTH, STATE)), out @ (y.ravel() * jax.nn.silu(z))


def vmapped_step(pools, slots, fresh, x, params):
    conv, state = jax.tree.map(lambda pool: pool[slots], pools)
    rows, y = jax.vmap(one_lane, in_axes=(None, 0, 0, 0, 0))(params, conv, state, fresh, x)
    return jax.tree.map(lambda pool, row: pool.at[slots, ...].set(row), pools, rows), y


PROGRAMS = (Program("mamba2", step, CONTRACT, draw), Program("mamba2, vmapped", vmapped_step, CONTRACT, draw))
