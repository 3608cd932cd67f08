"""Faults of layers inside a lane: only another form of the layer shows them."""

from typing import Any

import jax.numpy as jnp
from engine_mutants.mutant import EngineMutant, Finder, replaced
from jax import Array

from models.ops.recurrences import chunk_decay, delta_rule


@replaced(delta_rule, "head_decay")
def state_at_the_padded_end(_: Any, q: Array, k: Array, g: Array) -> Any:
    filled = jnp.where(g == 0, 0.0, jnp.cumsum(g, axis=-1))
    end = filled[..., -1:]
    right = chunk_decay.head_decay(q, k, g)
    return right._replace(k_out=k * jnp.exp(end - filled)[..., None], end=jnp.exp(end))


MUTANTS = (
    EngineMutant("state-at-the-padded-end", "sparkinfer#604",
                 "the state decays by what stands at the end of a chunk, zeros where the chunk is filled up",
                 Finder.REFERENCE, state_at_the_padded_end),
)  # fmt: skip
