"""Parameters of layers: random initial values, and shard specs as metadata."""

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


def decay_rates(rngs: nnx.Rngs, *shape: int, sharded: tuple[ShardedDim, ...] = ()) -> nnx.Param:
    """Sample the logarithm of decay rates, of heads or channels (`A_log` of checkpoints), float32."""
    return parameter(jnp.log(rngs.params.uniform(shape, minval=0.5, maxval=4.0)), *sharded)


def matrix(rngs: nnx.Rngs, *shape: int, sharded: tuple[ShardedDim, ...] = ()) -> nnx.Param:
    """Sample normal float32 values with variance 1 / fan-in (the last dimension)."""
    return parameter(rngs.params.normal(shape) * shape[-1] ** -0.5, *sharded)


class ZeroRngs(nnx.Rngs):
    """Zeros for all abstract parameters: random numbers are slow to trace."""

    @property
    def params(self) -> "ZeroRngs":
        return self

    def normal(self, shape: tuple[int, ...]) -> Array:
        return jnp.zeros(shape, jnp.float32)

    def uniform(self, shape: tuple[int, ...], minval: float, maxval: float) -> Array:
        return jnp.zeros(shape, jnp.float32)
