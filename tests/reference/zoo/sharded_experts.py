"""A mixture of experts over a mesh: lanes along `data`, columns of all experts along `model`, rows sorted by expert."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from zoo import experts
from zoo.experts import EXPERTS, TOP, grouped, route
from zoo.program import HIDDEN, LANES, Program, normal
from zoo.sharded_rows import over

from ir_passes import Lane, LaneContract, Pool, Shared

CONTRACT = LaneContract(inputs=(Shared(), Pool("ema"), Lane()), outputs=(Lane(), Pool("ema")))
WEIGHTS = {"router": P(), "up": P(None, None, "model"), "down": P(None, "model")}
SPECS = (WEIGHTS, P("data"), P("data"), (P("data"), P("data")))


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return experts.draw(rng)[0], normal(rng, LANES, HIDDEN), normal(rng, LANES, HIDDEN)


def mixed(w: Any, x: Array, key: Array, stable: bool = True) -> Array:
    """Each device has columns of all experts; what they give is summed while the rows are sorted by `key`."""
    order = jnp.argsort(key, stable=stable)
    y = grouped(w, x[order // TOP], jnp.bincount(key, length=EXPERTS).astype(jnp.int32))
    return lax.psum(y, "model")[jnp.argsort(order)].reshape(-1, TOP, HIDDEN)


def local_step(w, state, x):
    state = 0.9 * state + x
    chosen, expert = route(w, jnp.tanh(state))
    return x + jnp.einsum("nkd,nk->nd", mixed(w, jnp.tanh(state), expert.reshape(-1)), chosen), state


PROGRAMS = (Program("sharded experts, summed in their order", over(local_step, *SPECS), CONTRACT, draw),)
