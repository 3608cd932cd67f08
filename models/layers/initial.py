"""Parameters of layers: random initial values, and shard specs as metadata."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.sharding.sharded_dim import ShardedDim


def parameter(value: Array, *sharded: ShardedDim) -> nnx.Param:
    """Make a parameter with an initial value and shard specs for `Decoder.sharded_dims`."""
    return nnx.Param(value, sharded=sharded) if sharded else nnx.Param(value)


def sharded_dims_of(variable: nnx.Variable) -> tuple[ShardedDim, ...]:
    """Return the shard specs of a parameter; empty for a replicated parameter."""
    return variable.get_metadata("sharded", ())


def decay_rates(rngs: nnx.Rngs, heads: int, sharded: ShardedDim) -> nnx.Param:
    """Sample the logarithm of each head's decay rate (`A_log` of checkpoints), float32."""
    return parameter(jnp.log(jax.random.uniform(rngs.params(), (heads,), minval=0.5, maxval=4.0)), sharded)


def matrix(rngs: nnx.Rngs, *shape: int, sharded: tuple[ShardedDim, ...] = ()) -> nnx.Param:
    """Sample normal float32 values with variance 1 / fan-in (the last dimension)."""
    return parameter(jax.random.normal(rngs.params(), shape) * shape[-1] ** -0.5, *sharded)


class OneKey(nnx.Rngs):
    """A single key for all abstract parameters: counters of `nnx.Rngs` are slow to trace."""

    def params(self) -> Array:
        return jax.random.key(0)
