"""Parameters as layers make them: random initial values, and how shares of the model have them cut."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.sharding.sharded_dim import ShardedDim


def parameter(value: Array, *sharded: ShardedDim) -> nnx.Param:
    """A parameter that begins with a value; `Decoder.sharded_dims` gives the sharded by the path at which it lies."""
    return nnx.Param(value, sharded=sharded) if sharded else nnx.Param(value)


def sharded_dims_of(variable: nnx.Variable) -> tuple[ShardedDim, ...]:
    """How a parameter is cut; nothing where every device has the whole of it."""
    return variable.get_metadata("sharded", ())


def decay_rates(rngs: nnx.Rngs, heads: int, cut: ShardedDim) -> nnx.Param:
    """The logarithm of each head's rate of decay (`A_log` of checkpoints), float32."""
    return parameter(jnp.log(jax.random.uniform(rngs.params(), (heads,), minval=0.5, maxval=4.0)), cut)


def matrix(rngs: nnx.Rngs, *shape: int, sharded: tuple[ShardedDim, ...] = ()) -> nnx.Param:
    """Normal values with variance 1 / fan-in, the fan-in being the last dimension; float32.

    They are for training and tests; a loaded model never keeps them.
    """
    return parameter(jax.random.normal(rngs.params(), shape) * shape[-1] ** -0.5, *sharded)
