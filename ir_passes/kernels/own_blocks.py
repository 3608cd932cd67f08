"""Arrays that a kernel takes whole, and of which each step of a grid axis works on a part of its own.

Triton's kernels are often written so: the number of a step is an index in the body, not in a block's. Such an array is
read as if it had been cut into blocks. A guess is made from sizes alone; the body shows whether it is right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from ir_passes.kernels.blocks import Blocks, Component

SCRATCH = "scratch"
MAX_GUESSES = 12
"""Ways to cut one array that are tried."""


@dataclass(frozen=True)
class OwnPart:
    """The part of an array that one step works on.

    Attributes:
        array: by which the array is known.
        steps: dimension, as the kernel sees it -> the grid axis whose number picks the part, as the kernel counts axes.
        sizes: dimension -> elements of the part.
    """

    array: Any
    steps: dict[int, int]
    sizes: dict[int, int]


class NotItsOwn(Exception):
    """A step works on another part of an array than its own, or reads what another step has left in scratch."""

    def __init__(self, array: Any):
        super().__init__(array)
        self.array = array


def guesses(blocks: Blocks, grid: Sequence[int], axes: Sequence[int]) -> list[Blocks]:
    """Return ways to cut dimensions that a kernel takes whole by the steps of some grid axes."""
    whole = [d for d, one in enumerate(blocks.components) if not one.moves and d not in blocks.squeezed]
    axes = [axis for axis in axes if grid[axis] > 1 and axis not in blocks.axes]
    found = []
    for number in range(min(len(whole), len(axes)), 0, -1):
        for dims in permutations(whole, number):
            if list(dims) == sorted(dims):
                pairs = [tuple(zip(dims, chosen, strict=True)) for chosen in permutations(axes, number)]
                found += [one for one in pairs if all(blocks.shape[d] % grid[axis] == 0 for d, axis in one)]
    # a part of one element is the likeliest
    found.sort(key=lambda pairs: sum(blocks.shape[d] != grid[axis] for d, axis in pairs))
    return [_cut(blocks, pairs, grid) for pairs in found[:MAX_GUESSES]]


def _cut(blocks: Blocks, pairs: Sequence[tuple[int, int]], grid: Sequence[int]) -> Blocks:
    components = list(blocks.components)
    for dim, axis in pairs:
        components[dim] = Component(blocks.shape[dim] // grid[axis], axis, frozenset({axis}), True)
    return replace(blocks, components=tuple(components), own=dict(pairs))


def own_part(blocks: Blocks, seen: Sequence[int], array: Any) -> OwnPart | None:
    """Return the part of a step; None if the array is cut as the kernel says."""
    if not blocks.own:
        return None
    seen_dims = {d: d - sum(one < d for one in blocks.squeezed) for d in blocks.own}
    steps = {seen_dims[d]: list(seen).index(axis) for d, axis in blocks.own.items()}
    return OwnPart(array, steps, {seen_dims[d]: blocks.components[d].block for d in blocks.own})
