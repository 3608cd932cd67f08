"""Cached buffers: reference-counted arrays of a state that outlive its row."""

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from ir_passes.host.row_ledger import Label


class CachedBuffers:
    """The fixed-size arrays of one position, or a page of the growing arrays.

    They never change. All of them may be moved together between the device and the host.

    Attributes:
        arrays: arrays in the order of the layout.
        position: number of consumed tokens of a state; position of the first place of a span.
        mark: the sanitizer's label of the row that they were copied from, or None.
        refcount: number of current uses; while it is above 0 the buffers do not move.
    """

    __slots__ = ("__weakref__", "_places", "arrays", "mark", "refcount", "position")

    def __init__(self, arrays: tuple[jax.Array | np.ndarray, ...], position: int, mark: Label | None):
        self.arrays, self.position, self.mark, self.refcount = arrays, position, mark, 0
        self._places: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return (
            f"CachedBuffers({self.nbytes:,} B at position {self.position}, "
            f"on the {'device' if self.on_device else 'host'})"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays)

    def look(self) -> tuple[jax.Array, ...]:
        """Return the arrays on their devices, for reading; host arrays stay on the host too."""
        arrays: Any = self.arrays
        return arrays if self.on_device else jax.device_put(arrays, self._places)

    def take(self) -> tuple[jax.Array | np.ndarray, ...]:
        """Return the arrays, for the step that fills them."""
        return self.arrays

    def put(self, arrays: tuple[jax.Array, ...]) -> None:
        """Set the arrays that a step returned."""
        self.arrays = arrays

    def to_host(self) -> None:
        """Move them off the device."""
        self._places = tuple(array.sharding for array in self.arrays if isinstance(array, jax.Array))
        self.arrays = tuple(jax.device_get(self.arrays))

    def to_device(self) -> None:
        """Move them back to their devices."""
        self.arrays = self.look()

    @property
    def on_device(self) -> bool:
        """Whether they are on the device."""
        return all(isinstance(array, jax.Array) for array in self.arrays)


B = TypeVar("B", bound=Hashable)
"""Type of the buffers that edges have spans of; compared by identity."""


class BufferSpan(NamedTuple, Generic[B]):
    """Part of a buffer: `count` consecutive tokens from entry `first` on."""

    buffer: B
    first: int
    count: int
