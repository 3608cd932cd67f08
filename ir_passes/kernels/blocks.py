"""Blocks of a kernel's arrays: their sizes, and the step of the grid that works on each."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.kernels.memory import UnreadableKernel


@dataclass(frozen=True)
class Component:
    """The index of a block along one dimension of an array.

    Attributes:
        block: elements of the block along the dimension.
        axis: the grid axis whose number it is, where the steps of that axis cover the dimension; else None.
        axes: the grid axes that it depends on.
        moves: whether it is anything but the whole dimension.
    """

    block: int
    axis: int | None
    axes: frozenset[int]
    moves: bool

    @property
    def level(self) -> int:
        """The innermost grid axis that it depends on, -1 for none."""
        return max(self.axes, default=-1)


@dataclass(frozen=True)
class Blocks:
    """Blocks of one array.

    Attributes:
        shape, dtype: of the array, rounded up to whole blocks.
        components: one for each dimension.
        squeezed: dimensions that the kernel does not see.
        index_map: program of the block's indices, of grid indices and prefetched scalars.
        far: whether the array stays in the device's memory, and no block of it is brought to a core.
        unpadded: shape of the array itself, without the memory that the last blocks reach beyond it.
        own: dimension -> grid axis, of dimensions that the kernel takes whole and that are read as if they were cut.
    """

    shape: tuple[int, ...]
    dtype: Any
    components: tuple[Component, ...]
    squeezed: tuple[int, ...]
    index_map: Any
    far: bool = False
    unpadded: tuple[int, ...] = ()
    own: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, mapping: Any, grid: tuple[int, ...], pads: bool = False) -> "Blocks":
        """Read a block mapping of JAX.

        Args:
            grid: lengths of its axes.
            pads: whether the last block along a dimension may reach beyond the array. A TPU loads anything there, and
                drops what is stored there.

        Raises:
            UnreadableKernel: its blocks have no regular size.
        """
        if mapping.transforms:
            raise UnreadableKernel(f"{mapping.origin}: blocks with transforms {mapping.transforms}")
        unpadded = tuple(int(size) for size in mapping.array_aval.shape)
        sizes, squeezed = [], []
        for dim, one in enumerate(mapping.block_shape):
            kind = type(one).__name__
            if kind == "Squeezed" or one is None:
                squeezed.append(dim)
                sizes.append(1)
            elif kind == "Blocked":
                sizes.append(int(one.block_size))
            elif isinstance(one, int):
                sizes.append(one)
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
        taken: set[int] = set()
        for out, block, full, number in zip(closed.jaxpr.outvars, sizes, shape, numbers, strict=True):
            covers = number is not None and grid[number] * block == full and number not in taken
            covers = covers and (grid[number or 0] > 1 or block == 1)
            axes = frozenset(axis for axis in depends(out) if grid[axis] > 1)
            if covers:
                assert number is not None
                taken.add(number)
                axes |= {number}
            zero = not axes and block == full and _is_zero(out, number)
            components.append(Component(block, number if covers else None, axes, not zero))
        far = str(getattr(mapping.transformed_block_aval, "memory_space", "")) in ("any", "hbm")
        dtype = np.dtype(mapping.array_aval.dtype)
        return cls(shape, dtype, tuple(components), tuple(squeezed), closed.jaxpr, far, unpadded)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of a block, with the dimensions that the kernel does not see."""
        return tuple(one.block for one in self.components)

    @property
    def axes(self) -> frozenset[int]:
        """The grid axes that pick the block."""
        return frozenset().union(*(one.axes for one in self.components))

    @property
    def opened(self) -> int:
        """The innermost of them, -1 for none."""
        return max(self.axes, default=-1)

    def along(self, axis: int) -> int | None:
        """Return the dimension that the steps of a grid axis cover one after the other."""
        return next((dim for dim, one in enumerate(self.components) if one.axis == axis), None)

    def picked(self, axis: int) -> list[int]:
        """Return the dimensions whose index is computed, and known from this grid axis on."""
        return [d for d, one in enumerate(self.components) if one.axis is None and one.moves and one.level == axis]

    def same_place(self, other: "Blocks") -> bool:
        """Whether each step works on the same block of both arrays."""
        one, two = ((x.shape, x.components, x.squeezed, str(x.index_map)) for x in (self, other))
        return one == two


def _rounded(full: int, block: int, steps: int) -> int:
    """Return a length rounded up to whole blocks, if the last step reaches beyond it."""
    return steps * block if full < steps * block < full + block else full


def _is_literal_zero(out: Any) -> bool:
    return isinstance(out, ir.Literal) and int(out.val) == 0


def _is_zero(out: Any, number: int | None) -> bool:
    """Whether the index of a block that depends on no step of more than one is 0."""
    return number is not None or _is_literal_zero(out)


def _dependencies(jaxpr: Any, axes: int) -> Any:
    """Return a function from a value of an index map to the grid axes that it depends on."""
    found: dict[Any, frozenset[int]] = {var: frozenset({k}) for k, var in enumerate(jaxpr.invars[:axes])}

    def of(atom: Any) -> frozenset[int]:
        return frozenset() if isinstance(atom, ir.Literal) else found.get(atom, frozenset())

    for eqn in jaxpr.eqns:
        joined = frozenset().union(*map(of, eqn.invars))
        if any(one.primitive.name == "program_id" for body in ir.sub_jaxprs(eqn) for one in ir.all_eqns(body)):
            joined = frozenset(range(axes))
        if eqn.primitive.name == "program_id":
            joined = frozenset({eqn.params["axis"]})
        found.update(dict.fromkeys(eqn.outvars, joined))
    return of
