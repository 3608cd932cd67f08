"""The two parts of a row and their moves: fixed-size state, growing KV cache.

Fixed-size state (recurrent matrices, the last inputs of a convolution) is moved completely; of keys and values a span
of at most `KV_BLOCK` positions, so that only the sequence's positions are cached. Every step moves all arrays of its
part by one index. Positions outside the span are filled with zeros on the way out and dropped on the way in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from hybridlm.rows.split import WHOLE, SplitRows
from hybridlm.steps.dim_names import POSITION
from ir_passes import Lane, LaneContract, Pool, SlotMap, name_dims
from models import KV_BLOCK
from models.state.state import StateArray

RowPart = Literal["state", "span"]


@dataclass(frozen=True)
class PartShape:
    """Compilation key of a move of a row's part between a pool and cached buffers.

    Attributes:
        part: "state": the arrays of fixed size; "span": `KV_BLOCK` positions of the growing arrays.
        kept: True for a move out of the pool, False for a move back into it.
        pool: rows of the pool.
        rows: rows of the cached buffers; the first of them is used.
        axes: position axis within a row, for each array of a span.
    """

    part: RowPart
    kept: bool
    pool: int
    rows: int
    axes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"keep a {self.part} of {self.pool}" if self.kept else f"restore a {self.part} to {self.pool}"

    def of(self, rows: Any) -> tuple[StateArray, ...]:
        """Return the arrays of this part, given a `StateArray` for each array of a row."""
        return tuple(array for array in jax.tree.leaves(rows) if array.grows == (self.part == "span"))

    @property
    def positions_first(self) -> tuple[str, ...]:
        """Group of pools with the position axis right after the row axis: the cached buffers."""
        return ("target",) if self.kept else ("source",)

    def step(self, split: SplitRows = WHOLE) -> tuple[Callable[..., Any], LaneContract]:
        """Return the step, not compiled, and its contract.

        Args:
            split: mesh axis that the pool's rows are split over; cached buffers are replicated along it.
        """
        source, target = (self.pool, self.rows) if self.kept else (self.rows, self.pool)
        contract = copy_contract(source, target)
        if self.part == "state":
            return (copy_row(source=split) if self.kept else copy_row(target=split)), contract
        operands = (Lane(),) * (2 if self.kept else 3)
        contract = LaneContract(inputs=(*contract.inputs, *operands), outputs=contract.outputs)
        return (keep_span if self.kept else restore_span)(self.axes, split), contract


def copy_row(source: SplitRows = WHOLE, target: SplitRows = WHOLE) -> Callable[..., tuple[Any]]:
    """`step(target, source, read, write) -> (target,)`: row `read[0]` becomes row `write[0]`, in every array.

    The step's source and target are pytrees of the same structure, `read` and `write` int32 [1].

    Args:
        source, target: mesh axes that the rows of each are split over.
    """

    def copy_row(into: Any, out_of: Any, read: jax.Array, write: jax.Array) -> tuple[Any]:
        def copy(into: jax.Array, out_of: jax.Array) -> jax.Array:
            row = source.take(out_of, read)
            return into.at[target.mine(write, into)].set(
                row, mode="drop", unique_indices=True, wrap_negative_indices=False
            )

        return (jax.tree.map(copy, into, out_of),)

    return copy_row


def copy_contract(source: int, target: int) -> LaneContract:
    """Return the contract of `copy_row` from arrays of `source` to arrays of `target` rows."""
    maps: tuple[Any, ...] = (
        SlotMap("source", source, "read", null=False),
        SlotMap("target", target, "write", null=False),
    )
    return LaneContract(inputs=(Pool("target"), Pool("source"), *maps), outputs=(Pool("target"),))


def keep_span(axes: Sequence[int], split: SplitRows = WHOLE) -> Callable[..., tuple[tuple[Array, ...]]]:
    """Return a step that copies positions `first` ... of a row to place 0 ...

    The step is `step(cached, pool, read, write, first, count) -> (cached,)`. Arrays of the pool are `[row, ..,
    position, ..]`, with the position axis of a row in `axes`; cached ones are `[row, KV_BLOCK, ..]`. All other
    arguments are int32 [1]. `split`: as for `PartShape.step`.
    """

    def step(
        cached: tuple[Array, ...], pool: tuple[Array, ...], read: Array, write: Array, first: Array, count: Array
    ) -> tuple[tuple[Array, ...]]:
        place = name_dims(jnp.arange(KV_BLOCK, dtype=jnp.int32)[None], None, POSITION)

        def move(into: Array, out_of: Array, axis: int) -> Array:
            end = out_of.shape[axis + 1]
            position = jnp.where(place < count[:, None], first[:, None] + place, end)
            span = split.take(out_of, read, lambda row: _index(row, axis, position))
            return into.at[write].set(span, mode="drop", unique_indices=True, wrap_negative_indices=False)

        return (tuple(map(move, cached, pool, axes)),)

    return step


def restore_span(axes: Sequence[int], split: SplitRows = WHOLE) -> Callable[..., tuple[tuple[Array, ...]]]:
    """Return a step that copies places `first` ... back to positions `to` ...

    The step is `step(pool, cached, read, write, first, count, to) -> (pool,)`. Shapes as for `keep_span`.
    """

    def step(
        pool: tuple[Array, ...], cached: tuple[Array, ...], read: Array, write: Array, first: Array, count: Array,
        to: Array,
    ) -> tuple[tuple[Array, ...]]:  # fmt: skip
        place = jnp.arange(KV_BLOCK, dtype=jnp.int32)[None]
        in_span = (place >= first[:, None]) & (place < (first + count)[:, None])

        def move(into: Array, out_of: Array, axis: int) -> Array:
            position = jnp.where(in_span, to[:, None] + place - first[:, None], into.shape[axis + 1])
            span = out_of.at[read].get(mode="fill", unique_indices=True, wrap_negative_indices=False)
            # All places outside the span get the same index past the end, and are dropped.
            return into.at[_index(split.mine(write, into), axis, position)].set(
                span, mode="drop", unique_indices=False, wrap_negative_indices=False
            )

        return (tuple(map(move, pool, cached, axes)),)

    return step


def _index(row: Array, axis: int, position: Array) -> tuple[Any, ...]:
    """Return the index of these positions of a row; positions follow the row axis."""
    return (row[:, None], *[slice(None)] * axis, position)
