"""Experts over a mesh: lanes along `data`, experts' columns along `model`, rows sorted."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from zoo import experts
from zoo.experts import EXPERTS, TOP, grouped, route
from zoo.meshes.sharded_rows import over
from zoo.program import HIDDEN, LANES, Program, normal

from ir_passes import Lane, LaneContract, Pool, Shared

CONTRACT = LaneContract(inputs=(Shared(), Pool("ema"), Lane()), outputs=(Lane(), Pool("ema")))
WEIGHTS = {"router": P(), "up": P(None, None, "model"), "down": P(None, "model")}
SPECS = (WEIGHTS, P("data"), P("data"), (P("data"), P("data")))
PARALLEL = 4
PARALLEL_SPECS = ({"router": P(), "up": P("model"), "down": P("model")}, *SPECS[1:])


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return experts.draw(rng)[0], normal(rng, LANES, HIDDEN), normal(rng, LANES, HIDDEN)


def mixed(w: Any, x: Array, key: Array, stable: bool = True) -> Array:
    """Devices have columns of all experts; partial results are summed, rows sorted by `key`."""
    order = jnp.argsort(key, stable=stable)
    y = grouped(w, x[order // TOP], jnp.bincount(key, length=EXPERTS).astype(jnp.int32))
    return lax.psum(y, "model")[jnp.argsort(order)].reshape(-1, TOP, HIDDEN)


def local_step(w, state, x):
    state = 0.9 * state + x
    chosen, expert = route(w, jnp.tanh(state))
    return x + jnp.einsum("nkd,nk->nd", mixed(w, jnp.tanh(state), expert.reshape(-1)), chosen), state


def draw_parallel(rng: np.random.Generator) -> tuple[Any, ...]:
    """Two experts on each device along `model`."""
    w, state, x = draw(rng)
    return {"router": w["router"][:, :PARALLEL], "up": w["up"][:PARALLEL], "down": w["down"][:PARALLEL]}, state, x


def of_experts(
    w: Any,
    x: Array,
    expert: Array,
    *,
    inverse: Callable[[Array], Array] = jnp.argsort,
    selected: Callable[[Array], Array] = lambda order: order,
    sizes: Callable[[Array, Array], Array] = lambda keys, expert: keys,
    along: str | tuple[str, ...] = "model",
) -> Array:
    """Devices have whole experts: other devices' rows come last and count as zeros."""
    experts = w["up"].shape[0]
    flat = expert.reshape(-1)
    # `flat - first` may be negative, which `bincount` takes for 0
    keys = jnp.where(flat // experts == lax.axis_index("model"), flat % experts, experts)
    order = jnp.argsort(keys)
    counts = jnp.bincount(sizes(keys, flat), length=experts).astype(jnp.int32)
    y = jnp.where((keys[order] < experts)[:, None], grouped(w, x[selected(order) // TOP], counts), 0.0)
    return lax.psum(y[inverse(order)].reshape(-1, TOP, HIDDEN), along)


def parallel(w: Any, state: Array, x: Array, among: Callable[..., Array] = of_experts) -> tuple[Array, Array]:
    state = 0.9 * state + x
    chosen, expert = route(w, jnp.tanh(state))
    return x + jnp.einsum("nkd,nk->nd", among(w, jnp.tanh(state), expert), chosen), state


PROGRAMS = (
    Program("sharded experts, summed in their order", over(local_step, *SPECS), CONTRACT, draw),
    Program("sharded experts, some on each device", over(parallel, *PARALLEL_SPECS), CONTRACT, draw_parallel),
)
