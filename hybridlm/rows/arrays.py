"""The arrays that rows of a model consist of, by their types and where they lie, and as zeros."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from hybridlm.devices.mesh import DATA, MODEL
from hybridlm.devices.placement import Placement
from hybridlm.steps.structure import Rows
from models import Decoder
from models.platform import platform
from models.state.state import StateArray

_ALIGNED = 64
"""XLA:CPU uses memory of the host in place if its address is a multiple of this."""


class RowArrays:
    """Makes rows.

    Args:
        model: what one device holds of the model.
        dtype: of convolution and key/value state.
        placement: the devices; rows are split over the axis of the data.
    """

    def __init__(self, model: Decoder, dtype: DTypeLike, placement: Placement):
        self._model, self._dtype, self._placement = model, dtype, placement

    def abstract(self, count: int, context: int) -> Rows:
        """So many rows of at most so many tokens, by their types alone."""
        # What cannot be split is whole on every device.
        lanes = DATA if count % self._placement.data == 0 else None

        def typed(array: StateArray) -> jax.ShapeDtypeStruct:
            return self._over_devices(lanes, array.of(count, context, self._dtype), array)

        layers = jax.tree.map(typed, self._model.state_arrays())
        over = self._placement.over(lanes)
        token: Any = jax.ShapeDtypeStruct((count, 1), jnp.int32, sharding=over)
        return Rows(layers, token)

    def _over_devices(self, lanes: str | None, one: jax.ShapeDtypeStruct, array: StateArray) -> jax.ShapeDtypeStruct:
        """An array as one device has it, over the devices: parts of one dimension follow one another."""
        shape, split = list(one.shape), [lanes, *[None] * (len(one.shape) - 1)]
        if array.cut is not None:
            shape[array.cut.dim] *= self._placement.size(MODEL)
            split[array.cut.dim] = MODEL
        return jax.ShapeDtypeStruct(tuple(shape), one.dtype, sharding=self._placement.over(*split))

    def zeros(self, count: int, context: int) -> Rows:
        """So many rows of zero state."""
        return zeros(self.abstract(count, context))


def zeros(types: Any) -> Any:
    """Zeros of these types, each where its type says."""
    if platform() == "cpu" and jax.process_count() == 1:  # no program, which would be compiled for every shape
        return jax.tree.map(lambda one: jax.device_put(_zeros_to_copy(one), one.sharding), types)
    return jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype, device=one.sharding), types)


def _zeros_to_copy(one: jax.ShapeDtypeStruct) -> np.ndarray:
    """Zeros of the host that JAX copies: it takes aligned memory as it is, and that could not be donated."""
    width = one.dtype.itemsize
    size = math.prod(one.shape) * width
    memory = np.zeros(size + 2 * _ALIGNED, np.uint8)
    first = -memory.ctypes.data % _ALIGNED + width
    return memory[first : first + size].view(one.dtype).reshape(one.shape)


def maker_of_zeros(types: tuple[jax.ShapeDtypeStruct, ...]) -> Callable[[], tuple[jax.Array, ...]]:
    """What makes such zeros in one call."""

    # Inside of a jitted function the place that jnp.zeros is given has no effect.
    def made() -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros(one.shape, one.dtype) for one in types)

    return jax.jit(made, out_shardings=tuple(one.sharding for one in types))
