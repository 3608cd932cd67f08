"""Arrays of a pool's rows: ShapeDtypeStructs with shardings, and zeros."""

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
from ir_passes.targets import local_target
from models import Decoder
from models.state.pages import context_pages
from models.state.state import StateArray

_ALIGNED = 64
"""XLA:CPU uses host memory in place at multiples of this address."""


class RowArrays:
    """Makes the arrays of rows.

    Args:
        dtype: of convolution states and KV cache.
        placement: rows and pages are split over the data axis.
    """

    def __init__(self, model: Decoder, dtype: DTypeLike, placement: Placement):
        self.model = model
        self.dtype, self._placement = dtype, placement

    def blocks(self, context: int) -> int:
        grows = any(array.grows for array in jax.tree.leaves(self.model.state_arrays()))
        return context_pages(context) if grows else 0

    def abstract(self, rows: int, pages: int) -> Rows:
        """ShapeDtypeStructs of a pool."""

        def typed(array: StateArray) -> jax.ShapeDtypeStruct:
            return self._over_devices(array.of(rows, pages, self.dtype), array)

        layers = jax.tree.map(typed, self.model.state_arrays())
        over = self._placement.over(self._split(rows))
        token: Any = jax.ShapeDtypeStruct((rows, 1), jnp.int32, sharding=over)
        return Rows(layers, token)

    def _split(self, count: int) -> str | None:
        """Return the mesh axis of rows or pages; None replicates an uneven number."""
        return DATA if count % self._placement.data == 0 else None

    def _over_devices(self, array_type: jax.ShapeDtypeStruct, array: StateArray) -> jax.ShapeDtypeStruct:
        """Return an array's global type: shards of one dimension follow one another."""
        shape = list(array_type.shape)
        split = [self._split(shape[0]), *[None] * (len(shape) - 1)]
        if array.sharded_dim is not None:
            shape[array.sharded_dim.dim] *= self._placement.size(MODEL)
            split[array.sharded_dim.dim] = MODEL
        return jax.ShapeDtypeStruct(tuple(shape), array_type.dtype, sharding=self._placement.over(*split))

    def zeros(self, rows: int, pages: int) -> Rows:
        return zeros(self.abstract(rows, pages))


def zeros(types: Any) -> Any:
    # A program would be compiled for every shape.
    if local_target().platform == "cpu" and jax.process_count() == 1:
        return jax.tree.map(lambda array_type: jax.device_put(_zeros_to_copy(array_type), array_type.sharding), types)
    return jax.tree.map(
        lambda array_type: jnp.zeros(array_type.shape, array_type.dtype, device=array_type.sharding), types
    )


def _zeros_to_copy(array_type: jax.ShapeDtypeStruct) -> np.ndarray:
    """Return host zeros that JAX must copy: shared memory is not donatable."""
    width = array_type.dtype.itemsize
    size = math.prod(array_type.shape) * width
    memory = np.zeros(size + 2 * _ALIGNED, np.uint8)
    first = -memory.ctypes.data % _ALIGNED + width
    return memory[first : first + size].view(array_type.dtype).reshape(array_type.shape)


def maker_of_zeros(types: tuple[jax.ShapeDtypeStruct, ...]) -> Callable[[], tuple[jax.Array, ...]]:
    """Return a function that allocates such zeros in one call."""

    # Inside a jitted function the device argument of jnp.zeros has no effect.
    def made() -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros(array_type.shape, array_type.dtype) for array_type in types)

    return jax.jit(made, out_shardings=tuple(array_type.sharding for array_type in types))
