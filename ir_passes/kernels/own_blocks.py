"""Guesses of blocks for arrays that a kernel takes whole.

Triton's kernels often use `program_id` as an index in the body, not in a block's index map. Such an array is read as if
it were cut into blocks. A guess comes from sizes alone; the body confirms or refutes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

from ir_passes.kernels.blocks import Blocks, Component

SCRATCH = "scratch"
MAX_GUESSES = 12
"""Guesses for one array."""


@dataclass(frozen=True)
class StepPart:
    """The part of an array that one step works on.

    Attributes:
        array: key of the array.
        steps: dimension, as the kernel sees it -> grid axis that picks the part, as the kernel counts axes.
        sizes: dimension -> elements of the part.
    """

    array: Any
    steps: dict[int, int]
    sizes: dict[int, int]


class BlockGuessFailed(Exception):
    """A step works on another part than guessed, or reads another step's scratch."""

    def __init__(self, array: Any):
        super().__init__(array)
        self.array = array


def guesses(blocks: Blocks, grid: Sequence[int], axes: Sequence[int]) -> list[Blocks]:
    """Return guesses of `Blocks` with whole dimensions cut by some grid axes."""
    dims = [d for d, component in enumerate(blocks.components) if not component.moves and d not in blocks.squeezed]
    axes = [axis for axis in axes if grid[axis] > 1 and axis not in blocks.axes]
    cuts = [
        tuple(zip(chosen_dims, chosen_axes, strict=True))
        for count in range(min(len(dims), len(axes)), 0, -1)
        for chosen_dims in combinations(dims, count)
        for chosen_axes in permutations(axes, count)
    ]
    cuts = [cut for cut in cuts if all(blocks.shape[d] % grid[axis] == 0 for d, axis in cut)]
    # a part of one element is the likeliest
    cuts.sort(key=lambda cut: sum(blocks.shape[d] != grid[axis] for d, axis in cut))
    return [_cut(blocks, cut, grid) for cut in cuts[:MAX_GUESSES]]


def _cut(blocks: Blocks, cut: Sequence[tuple[int, int]], grid: Sequence[int]) -> Blocks:
    components = list(blocks.components)
    for dim, axis in cut:
        components[dim] = Component(blocks.shape[dim] // grid[axis], axis, frozenset({axis}), True)
    return replace(blocks, components=tuple(components), guess=dict(cut))


def step_part(blocks: Blocks, body_axes: Sequence[int], array: Any) -> StepPart | None:
    """Return the part of a step; None without a guess."""
    if not blocks.guess:
        return None
    body_dims = {d: d - sum(squeezed < d for squeezed in blocks.squeezed) for d in blocks.guess}
    steps = {body_dims[d]: list(body_axes).index(axis) for d, axis in blocks.guess.items()}
    return StepPart(array, steps, {body_dims[d]: blocks.components[d].block for d in blocks.guess})
