"""Modules with given parameters; the random ones that they are built with are never computed."""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

M = TypeVar("M", bound=nnx.Module)


def filled(build: Callable[[], M], value: Callable[[str, tuple[int, ...]], np.ndarray]) -> M:
    """The module that `build` makes, with `value(dotted name, shape)` as its parameters, all of them."""
    graph, state = nnx.split(nnx.eval_shape(build))
    filled = []
    for path, variable in nnx.to_flat_state(state):
        array = value(".".join(map(str, path)), variable.shape)
        assert array.shape == variable.shape and array.dtype == variable.dtype, path
        filled.append((path, variable.replace(jnp.asarray(array))))
    return nnx.merge(graph, nnx.from_flat_state(filled))
