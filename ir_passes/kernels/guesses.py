"""Guessed parts of arrays taken whole; the kernel's body confirms or refutes them."""

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

from ir_passes.kernels.blocks import SCRATCH, VISITS, Blocks
from ir_passes.kernels.memory import UnreadableKernel

MAX_GUESSES = 12
Cut = tuple[tuple[int, int], ...]
"""Pairs of a dimension and the grid axis with its parts."""


def guesses_of(kernel: Any) -> dict[Any, list[Any]]:
    """Return guesses for arrays, scratch and revisited blocks, the likeliest first."""
    aliased, results = set(kernel.aliases.values()), range(len(kernel.outputs))
    guesses: dict[Any, list[Any]] = {
        ("operand", k): _cuts(blocks, kernel.grid, kernel.body_axes)
        for k, blocks in enumerate(kernel.inputs)
        if k not in aliased
    }
    for k, blocks in enumerate(kernel.outputs):
        axes = [axis for axis in kernel.body_axes if kernel.works_in_place(k) or kernel.sequential[axis]]
        guesses["result", k] = [cut for cut in _cuts(blocks, kernel.grid, axes) if _fits(kernel, k, cut)]
    has_scratch = any(dtype is not None for _, dtype in kernel.scratch)
    # innermost grid axis with new scratch in each step
    guesses[SCRATCH] = [axis for axis, size in reversed([*enumerate(kernel.grid)]) if size > 1 and has_scratch]
    # each step writes a computed block before it reads it
    guesses[VISITS] = [True] if any(map(kernel.may_revisit, results)) and not kernel.written else []
    return guesses


def _fits(kernel: Any, result: int, cut: Cut) -> bool:
    """Return whether a guess fits the order of the steps."""
    try:
        kernel.guessed({("result", result): cut}).check_order()
    except UnreadableKernel:
        return False
    return True


def _cuts(blocks: Blocks, grid: Sequence[int], axes: Sequence[int]) -> list[Cut]:
    """Return cuts of whole dimensions by grid axes."""
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
    return cuts[:MAX_GUESSES]
