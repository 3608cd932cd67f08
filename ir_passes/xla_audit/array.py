"""The type of an array of a compiled program: its size in elements and in memory."""

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Array:
    """The type of one array: XLA's dtype name, dimensions, layout and bits of an element in memory.

    The table of a tuple is an array of dtype "tuple": a pointer for each of its entries.

    Attributes:
        layout: dimensions from the fastest to the slowest.
        tiles: sizes of the blocks that the elements lie in one after the other, each of the last dimensions of the
            shape before it; none but on TPUs. A negative size joins a dimension with the next one.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...]
    bits: int
    tiles: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Bytes of the elements, without padding."""
        return (self.count * self.bits + 7) // 8

    @cached_property
    def padded_bytes(self) -> int:
        """Bytes in memory: tiles are whole, and elements that are not there fill them.

        Source: openxla/xla, docs/tiled_layout.md.
        """
        shape = [self.dims[dim] for dim in reversed(self.layout)]
        for tile in self.tiles:
            for i, size in enumerate(tile):
                if size < 0:
                    place = len(shape) - len(tile) + i
                    shape[place : place + 2] = [1, shape[place] * shape[place + 1]]
            shape = [1] * (len(tile) - len(shape)) + shape
            sizes = [max(1, size) for size in tile]
            blocks = [-(-size // block) for size, block in zip(shape[-len(tile) :], sizes, strict=True)]
            shape = [*shape[: -len(tile)], *blocks, *sizes]
        return (math.prod(shape) * self.bits + 7) // 8

    @property
    def row_major(self) -> bool:
        """Whether the elements lie in the order of their positions: the last dimension is the fastest."""
        return self.layout == tuple(reversed(range(len(self.dims)))) and (len(self.dims) < 2 or not self.tiles)

    def same_order(self, other: "Array") -> bool:
        """Whether the elements of both, which have the same dimensions, lie in the same order."""
        return self.layout == other.layout and (self.tiles == other.tiles or self.count == 1)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"
