"""Cached buffers: reference-counted arrays or pages of a state that outlive its row."""

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from hybridlm.rows.pool import RowPool
from ir_passes.host.page_owner import Page
from ir_passes.host.row_ledger import Label


class KeptPage(NamedTuple):
    """A right to a page of a pool, shared by a cached state with rows."""

    pool: RowPool
    right: Page

    @property
    def number(self) -> int:
        return self.pool.page_number(self.right)

    @property
    def device(self) -> int:
        return self.pool.page_device(self.right)

    @property
    def alone(self) -> bool:
        owner = self.pool.page_owner
        return owner is not None and owner.holders(self.right) == 1

    def release(self) -> None:
        self.pool.drop_page(self.right)


class CachedBuffers:
    """The fixed-size arrays of one position, or a page of the growing arrays.

    A page is in a pool, where rows may share it, or in arrays: on the device if not full, or on the host.

    Attributes:
        arrays: in layout order; () for a page of a pool.
        position: consumed tokens of a state; first position of a page.
        mark: the sanitizer's label of the copied row.
        nbytes: of all arrays, or of the page.
        refcount: current uses; above 0, the buffers do not move.
    """

    __slots__ = ("__weakref__", "_places", "arrays", "mark", "nbytes", "page", "refcount", "position")

    def __init__(self, arrays: tuple[jax.Array | np.ndarray, ...], position: int, mark: Label | None):
        self.arrays, self.position, self.mark, self.refcount = arrays, position, mark, 0
        self.page: KeptPage | None = None
        self.nbytes = sum(array.nbytes for array in arrays)
        self._places: tuple[Any, ...] = ()

    @classmethod
    def in_pool(cls, page: KeptPage, nbytes: int, position: int, mark: Label | None) -> "CachedBuffers":
        buffers = cls((), position, mark)
        buffers.page, buffers.nbytes = page, nbytes
        return buffers

    def __repr__(self) -> str:
        place = "in a pool" if self.page is not None else f"on the {'device' if self.on_device else 'host'}"
        return f"CachedBuffers({self.nbytes:,} B at position {self.position}, {place})"

    def look(self) -> tuple[jax.Array, ...]:
        """Return the arrays on their devices, for reading."""
        arrays: Any = self.arrays
        return arrays if self.on_device else jax.device_put(arrays, self._places)

    def take(self) -> tuple[jax.Array | np.ndarray, ...]:
        """Return the arrays, for the step that fills them."""
        return self.arrays

    def put(self, arrays: tuple[jax.Array, ...]) -> None:
        self.arrays = arrays

    def share(self, page: KeptPage) -> None:
        """Replace the arrays by a page of a pool with the same values."""
        self.arrays, self.page = (), page

    def release(self) -> None:
        if self.page is not None:
            self.page.release()
            self.page = None

    def to_host(self, copy: "CachedBuffers") -> None:
        """Move them, or a copy of their page in arrays, off the device."""
        self._places = tuple(array.sharding for array in copy.arrays if isinstance(array, jax.Array))
        self.arrays = tuple(jax.device_get(copy.arrays))
        self.release()

    def to_device(self) -> None:
        self.arrays = self.look()

    @property
    def on_device(self) -> bool:
        return all(isinstance(array, jax.Array) for array in self.arrays)


B = TypeVar("B", bound=Hashable)
"""Type of buffers; compared by identity."""


class BufferSpan(NamedTuple, Generic[B]):
    """Part of a buffer: `count` consecutive tokens from entry `first` on."""

    buffer: B
    first: int
    count: int
