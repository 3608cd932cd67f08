"""Random initial values of parameters, for training and tests; a loaded model never keeps them."""

import jax
from flax import nnx


def matrix(rngs: nnx.Rngs, *shape: int) -> nnx.Param:
    """Normal values with variance 1 / fan-in, the fan-in being the last dimension; float32."""
    return nnx.Param(jax.random.normal(rngs.params(), shape) * shape[-1] ** -0.5)
