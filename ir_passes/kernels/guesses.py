"""Guesses of the parts of arrays that a kernel takes whole; the kernel's body confirms or refutes them."""

from collections.abc import Sequence
from itertools import combinations, permutations

from ir_passes.kernels.blocks import Blocks, cut_by

MAX_GUESSES = 12


def guesses(blocks: Blocks, grid: Sequence[int], axes: Sequence[int]) -> list[Blocks]:
    """Return `Blocks` with whole dimensions cut by grid axes."""
    dims = [d for d, component in enumerate(blocks.components) if not component.moves and d not in blocks.squeezed]
    axes = [axis for axis in axes if grid[axis] > 1 and axis not in blocks.axes]
    cuts = [
        tuple(zip(chosen_dims, chosen_axes, strict=True))
        for count in range(min(len(dims), len(axes)), 0, -1)
        for chosen_dims in combinations(dims, count)
        for chosen_axes in permutations(axes, count)
    ]
    cuts = [cut for cut in cuts if all(blocks.shape[d] % grid[axis] == 0 for d, axis in cut)]
    # parts of one element are the likeliest
    cuts.sort(key=lambda cut: sum(blocks.shape[d] != grid[axis] for d, axis in cut))
    return [cut_by(blocks, cut, grid) for cut in cuts[:MAX_GUESSES]]
