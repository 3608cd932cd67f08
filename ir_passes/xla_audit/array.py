"""Array types of a compiled program: elements and bytes in memory."""

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Array:
    """The type of one array.

    A tuple's table has dtype "tuple" and one pointer per entry.

    Attributes:
        dtype: XLA's name.
        layout: dimensions, fastest first.
        bits: of one element.
        tiles: nested blocks of contiguous elements (TPUs only); each divides the last dimensions that the previous tile
            leaves. A negative size joins a dimension with the next.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...]
    bits: int
    tiles: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        return (self.count * self.bits + 7) // 8

    @cached_property
    def padded_bytes(self) -> int:
        """Bytes with the padding of last tiles (openxla/xla, docs/tiled_layout.md)."""
        shape = [self.dims[dim] for dim in reversed(self.layout)]
        for tile in self.tiles:
            for i, size in enumerate(tile):
                if size < 0:
                    position = len(shape) - len(tile) + i
                    shape[position : position + 2] = [1, shape[position] * shape[position + 1]]
            shape = [1] * (len(tile) - len(shape)) + shape
            sizes = [max(1, size) for size in tile]
            blocks = [-(-size // block) for size, block in zip(shape[-len(tile) :], sizes, strict=True)]
            shape = [*shape[: -len(tile)], *blocks, *sizes]
        return (math.prod(shape) * self.bits + 7) // 8

    @property
    def row_major(self) -> bool:
        """Whether the last dimension is the fastest."""
        return self.layout == tuple(reversed(range(len(self.dims)))) and (len(self.dims) < 2 or not self.tiles)

    def same_order(self, other: "Array") -> bool:
        """Whether arrays of equal dimensions have the same memory order."""
        return self.layout == other.layout and (self.tiles == other.tiles or self.count == 1)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"
