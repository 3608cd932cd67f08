"""Parameters as layers make them: random initial values, and how shares of the model have them cut."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.sharding.cut import Cut


def parameter(value: Array, *cuts: Cut) -> nnx.Param:
    """A parameter that begins with a value; `Decoder.cuts` gives the cuts by the path at which it lies."""
    return nnx.Param(value, cuts=cuts) if cuts else nnx.Param(value)


def cuts_of(variable: nnx.Variable) -> tuple[Cut, ...]:
    """How a parameter is cut; nothing where every device has the whole of it."""
    return variable.get_metadata("cuts", ())


def decay_rates(rngs: nnx.Rngs, heads: int, cut: Cut) -> nnx.Param:
    """The logarithm of each head's rate of decay (`A_log` of checkpoints), float32."""
    return parameter(jnp.log(jax.random.uniform(rngs.params(), (heads,), minval=0.5, maxval=4.0)), cut)


def matrix(rngs: nnx.Rngs, *shape: int, cuts: tuple[Cut, ...] = ()) -> nnx.Param:
    """Normal values with variance 1 / fan-in, the fan-in being the last dimension; float32.

    They are for training and tests; a loaded model never keeps them.
    """
    return parameter(jax.random.normal(rngs.params(), shape) * shape[-1] ** -0.5, *cuts)
