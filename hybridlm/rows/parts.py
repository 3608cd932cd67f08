"""The two parts of a row and the steps that move them: what has one size, and what grows with every token.

Of a state of fixed size (recurrent matrices, the last inputs of a convolution) all is moved at once; of keys and values
a span of at most `KV_BLOCK` positions, so that a sequence keeps as much as it has. Every step moves all arrays of its
part by one index. Positions outside the span are filled with zeros on the way out and dropped on the way in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from hybridlm.rows.pool import copy_contract, copy_row
from hybridlm.rows.split import WHOLE, SplitRows
from hybridlm.steps.dim_names import POSITION
from ir_passes import Lane, LaneContract, name_dims
from models import KV_BLOCK
from models.state.state import StateArray

RowPart = Literal["state", "span"]


@dataclass(frozen=True)
class PartShape:
    """The move of a part of a row between a pool and where it is kept: what its program is compiled for.

    Attributes:
        part: "state": the arrays of fixed size; "span": `KV_BLOCK` positions of those that grow.
        kept: whether it is moved out of the pool, to be kept; if not, back into it.
        pool: rows of the pool.
        rows: rows of what is kept; the first of them is used.
        axes: of each array of a span, the axis of a row that counts positions.
    """

    part: RowPart
    kept: bool
    pool: int
    rows: int
    axes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"keep a {self.part} of {self.pool}" if self.kept else f"restore a {self.part} to {self.pool}"

    def of(self, rows: Any) -> tuple[StateArray, ...]:
        """The arrays of this part, of a `StateArray` for each array of a row."""
        return tuple(array for array in jax.tree.leaves(rows) if array.grows == (self.part == "span"))

    @property
    def positions_first(self) -> tuple[str, ...]:
        """Group of the pools whose arrays have their positions right behind the rows: what is kept."""
        return ("target",) if self.kept else ("source",)

    def step(self, split: SplitRows = WHOLE) -> tuple[Callable[..., Any], LaneContract]:
        """The step, not compiled, and its contract.

        Args:
            split: over which axis of a mesh the pool's rows are split; what is kept is the same along it.
        """
        source, target = (self.pool, self.rows) if self.kept else (self.rows, self.pool)
        contract = copy_contract(source, target)
        if self.part == "state":
            return (copy_row(source=split) if self.kept else copy_row(target=split)), contract
        operands = (Lane(),) * (2 if self.kept else 3)
        contract = LaneContract(inputs=(*contract.inputs, *operands), outputs=contract.outputs)
        return (keep_span if self.kept else restore_span)(self.axes, split), contract


def keep_span(axes: Sequence[int], split: SplitRows = WHOLE) -> Callable[..., tuple[tuple[Array, ...]]]:
    """`step(kept, pool, read, write, first, count) -> (kept,)`: positions `first` ... of a row, from place 0 on.

    Arrays of the pool are `[row, .., position, ..]`, with positions at these axes of a row; those that are kept are
    `[row, KV_BLOCK, ..]`. All other arguments are int32 [1]. `split`: as for `PartShape.step`.
    """

    def step(
        kept: tuple[Array, ...], pool: tuple[Array, ...], read: Array, write: Array, first: Array, count: Array
    ) -> tuple[tuple[Array, ...]]:
        place = name_dims(jnp.arange(KV_BLOCK, dtype=jnp.int32)[None], None, POSITION)

        def move(into: Array, out_of: Array, axis: int) -> Array:
            past = out_of.shape[axis + 1]
            position = jnp.where(place < count[:, None], first[:, None] + place, past)
            span = split.take(out_of, read, lambda row: _index(row, axis, position))
            return into.at[write].set(span, mode="drop", unique_indices=True, wrap_negative_indices=False)

        return (tuple(map(move, kept, pool, axes)),)

    return step


def restore_span(axes: Sequence[int], split: SplitRows = WHOLE) -> Callable[..., tuple[tuple[Array, ...]]]:
    """`step(pool, kept, read, write, first, count, to) -> (pool,)`: the way back.

    Places `first` ... of what is kept become positions `to` ... of a row. Shapes as for `keep_span`.
    """

    def step(
        pool: tuple[Array, ...], kept: tuple[Array, ...], read: Array, write: Array, first: Array, count: Array,
        to: Array,
    ) -> tuple[tuple[Array, ...]]:  # fmt: skip
        place = jnp.arange(KV_BLOCK, dtype=jnp.int32)[None]
        inside = (place >= first[:, None]) & (place < (first + count)[:, None])

        def move(into: Array, out_of: Array, axis: int) -> Array:
            position = jnp.where(inside, to[:, None] + place - first[:, None], into.shape[axis + 1])
            span = out_of.at[read].get(mode="fill", unique_indices=True, wrap_negative_indices=False)
            # The places outside the span go past the end, more than one of them, and are dropped there.
            return into.at[_index(split.mine(write, into), axis, position)].set(
                span, mode="drop", unique_indices=False, wrap_negative_indices=False
            )

        return (tuple(map(move, pool, kept, axes)),)

    return step


def _index(row: Array, axis: int, position: Array) -> tuple[Any, ...]:
    """Of a row, these positions: they come out, and go in, as the first axis behind the row's."""
    return (row[:, None], *[slice(None)] * axis, position)
