"""Blocks of a kernel's arrays: sizes, grid steps, and guesses for arrays taken whole.

Triton's kernels often use `program_id` in the body, not in a block's index map. A guess cuts such an array into blocks;
the body confirms or refutes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.kernels.memory import UnreadableKernel


@dataclass(frozen=True)
class Component:
    """The index of a block along one dimension of an array.

    Attributes:
        block: number of elements.
        axis: the grid axis with this index, if its steps cover the dimension.
        moves: False for a whole dimension.
    """

    block: int
    axis: int | None
    axes: frozenset[int]
    moves: bool

    @property
    def level(self) -> int:
        return max(self.axes, default=-1)


@dataclass(frozen=True)
class Blocks:
    """Blocks of one array.

    Attributes:
        shape, dtype: of the array, rounded up to whole blocks.
        squeezed: dimensions hidden from the kernel.
        index_map: jaxpr from grid indices and prefetched scalars to block indices.
        in_device_memory: True if no block is copied to a core.
        unpadded: shape without the foreign memory in the last blocks.
        guess: dimension -> grid axis, for dimensions taken whole (`guesses`).
    """

    shape: tuple[int, ...]
    dtype: Any
    components: tuple[Component, ...]
    squeezed: tuple[int, ...]
    index_map: Any
    in_device_memory: bool = False
    unpadded: tuple[int, ...] = ()
    guess: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, mapping: Any, grid: tuple[int, ...], pads: bool = False) -> "Blocks":
        """Read a block mapping of JAX; raises UnreadableKernel for blocks without a regular size.

        `pads` is True if the last block may reach beyond the array.
        """
        if mapping.transforms:
            raise UnreadableKernel(f"{mapping.origin}: blocks with transforms {mapping.transforms}")
        unpadded = tuple(int(size) for size in mapping.array_aval.shape)
        sizes, squeezed = [], []
        for dim, size in enumerate(mapping.block_shape):
            kind = type(size).__name__
            if kind == "Squeezed" or size is None:
                squeezed.append(dim)
                sizes.append(1)
            elif kind == "Blocked" or isinstance(size, int):
                sizes.append(int(getattr(size, "block_size", size)))
            else:
                raise UnreadableKernel(f"{mapping.origin}: a block of kind {kind} along dimension {dim}")
        closed = ir.closed(mapping.index_map_jaxpr)
        if closed.consts:
            raise UnreadableKernel(f"{mapping.origin}: an index map with arrays of its own")
        depends = _dependencies(closed.jaxpr, len(grid))
        outs, axes_of_grid = closed.jaxpr.outvars, closed.jaxpr.invars[: len(grid)]
        numbers = [next((k for k, var in enumerate(axes_of_grid) if var is out), None) for out in outs]
        shape = unpadded
        if pads:
            steps = [
                int(_is_literal_zero(out)) if number is None else grid[number]
                for out, number in zip(outs, numbers, strict=True)
            ]
            shape = tuple(map(_rounded, unpadded, sizes, steps))
        components: list[Component] = []
        covering: set[int] = set()
        for out, block, full, number in zip(outs, sizes, shape, numbers, strict=True):
            covers = number is not None and grid[number] * block == full and number not in covering
            covers = covers and (grid[number or 0] > 1 or block == 1)
            axes = frozenset(axis for axis in depends(out) if grid[axis] > 1)
            if covers:
                assert number is not None
                covering.add(number)
                axes |= {number}
            is_zero = number is not None or _is_literal_zero(out)  # the only step of a grid axis is step 0
            moves = bool(axes) or block != full or not is_zero
            components.append(Component(block, number if covers else None, axes, moves))
        in_device_memory = str(getattr(mapping.transformed_block_aval, "memory_space", "")) in ("any", "hbm")
        dtype = np.dtype(mapping.array_aval.dtype)
        return cls(shape, dtype, tuple(components), tuple(squeezed), closed.jaxpr, in_device_memory, unpadded)

    @property
    def axes(self) -> frozenset[int]:
        return frozenset().union(*(component.axes for component in self.components))

    @property
    def level(self) -> int:
        """The innermost grid axis that picks the block, or -1."""
        return max(self.axes, default=-1)

    def along(self, axis: int) -> int | None:
        """Return the dimension that a grid axis covers in order."""
        return next((dim for dim, component in enumerate(self.components) if component.axis == axis), None)

    def computed_dims(self, axis: int) -> list[int]:
        """Return dimensions with a computed index, known from this grid axis on."""
        parts = enumerate(self.components)
        return [dim for dim, part in parts if part.axis is None and part.moves and part.level == axis]

    def same_place(self, other: "Blocks") -> bool:
        first, second = ((x.shape, x.components, x.squeezed, str(x.index_map)) for x in (self, other))
        return first == second


def _rounded(full: int, block: int, steps: int) -> int:
    return steps * block if full < steps * block < full + block else full


def _is_literal_zero(out: Any) -> bool:
    return isinstance(out, ir.Literal) and int(out.val) == 0


def _dependencies(jaxpr: Any, axes: int) -> Any:
    """Map a variable of an index map to its grid axes."""
    axes_of: dict[Any, frozenset[int]] = {var: frozenset({k}) for k, var in enumerate(jaxpr.invars[:axes])}

    def of(atom: Any) -> frozenset[int]:
        return frozenset() if isinstance(atom, ir.Literal) else axes_of.get(atom, frozenset())

    for eqn in jaxpr.eqns:
        joined = frozenset().union(*map(of, eqn.invars))
        if any(inner.primitive.name == "program_id" for body in ir.sub_jaxprs(eqn) for inner in ir.all_eqns(body)):
            joined = frozenset(range(axes))
        if eqn.primitive.name == "program_id":
            joined = frozenset({eqn.params["axis"]})
        axes_of.update(dict.fromkeys(eqn.outvars, joined))
    return of


SCRATCH, VISITS = "scratch", "visits"


@dataclass(frozen=True)
class StepPart:
    """The part of an array that one step works on.

    Attributes:
        steps: dimension, as the kernel sees it -> grid axis, as the kernel counts axes.
    """

    array: Any
    steps: dict[int, int]
    sizes: dict[int, int]


class BlockGuessFailed(Exception):
    """A step uses an unexpected part of the argument, an array, or another step's scratch."""


def cut_by(blocks: Blocks, cut: Sequence[tuple[int, int]], grid: Sequence[int]) -> Blocks:
    """Return `Blocks` with whole dimensions cut by the steps of grid axes: pairs of both."""
    components, axes = list(blocks.components), set(blocks.axes)
    for dim, axis in cut:
        size, rest = divmod(blocks.shape[dim], grid[axis])
        if rest or components[dim].moves or dim in blocks.squeezed or axis in axes:
            raise UnreadableKernel(f"dimension {dim} cannot be cut along grid axis {axis}")
        components[dim] = Component(size, axis, frozenset({axis}), True)
        axes.add(axis)
    return replace(blocks, components=tuple(components), guess=dict(cut))


def step_part(blocks: Blocks, body_axes: Sequence[int], array: Any) -> StepPart | None:
    if not blocks.guess:
        return None
    body_dims = {d: d - sum(squeezed < d for squeezed in blocks.squeezed) for d in blocks.guess}
    steps = {body_dims[d]: list(body_axes).index(axis) for d, axis in blocks.guess.items()}
    return StepPart(array, steps, {body_dims[d]: blocks.components[d].block for d in blocks.guess})
