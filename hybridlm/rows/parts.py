"""The two parts of a row and their moves: fixed-size state, growing KV cache.

Fixed-size state (recurrent matrices, the last inputs of a convolution) is moved completely; of keys and values the
first positions of one page, so that only the sequence's positions are cached. Every step moves all arrays of its part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from hybridlm.rows.split import WHOLE, SplitRows
from ir_passes import Lane, LaneContract, Pool, SlotMap
from models import KV_BLOCK
from models.state.state import StateArray

RowPart = Literal["state", "span"]


@dataclass(frozen=True)
class PartShape:
    """Compilation key of a move of a row's part between a pool and cached buffers.

    Attributes:
        part: "state": the arrays of fixed size; "span": the first positions of a page of the growing arrays.
        kept: True for a move out of the pool, False for a move back into it.
        pool: rows of the pool, or for a span its pages.
        rows: rows or pages of the cached buffers; the first of them is used.
        axes: axis of the places within a page, for each array of a span.
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

    def step(self, split: SplitRows = WHOLE) -> tuple[Callable[..., Any], LaneContract]:
        """Return the step, not compiled, and its contract.

        Args:
            split: mesh axis that the pool's rows and pages are split over; cached buffers are replicated along it.
        """
        source, target = (self.pool, self.rows) if self.kept else (self.rows, self.pool)
        contract = copy_contract(source, target)
        splits = (split, WHOLE) if self.kept else (WHOLE, split)
        if self.part == "state":
            return copy_row(*splits), contract
        contract = LaneContract(inputs=(*contract.inputs, Lane()), outputs=contract.outputs)
        return copy_places(self.axes, *splits), contract


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


def copy_places(
    axes: Sequence[int], source: SplitRows = WHOLE, target: SplitRows = WHOLE
) -> Callable[..., tuple[tuple[Array, ...]]]:
    """Return a step that copies the first positions of one page to another.

    The step is `step(target, source, read, write, count) -> (target,)`, from page `read[0]` of the source to page
    `write[0]` of the target. Arrays are `[page, .., place, ..]`, with the axis of the places of a page in `axes`; all
    other arguments are int32 [1].

    Args:
        axes: of each array.
        source, target: mesh axes that the pages of each are split over.
    """

    def step(
        into: tuple[Array, ...], out_of: tuple[Array, ...], read: Array, write: Array, count: Array
    ) -> tuple[tuple[Array, ...]]:
        place = jnp.arange(KV_BLOCK, dtype=jnp.int32)[None]
        # All other places get the same index past the end: they are filled with zeros, and dropped.
        places = jnp.where(place < count[:, None], place, KV_BLOCK)

        def move(into: Array, out_of: Array, axis: int) -> Array:
            span = source.take(out_of, read, lambda page: _index(page, axis, places))
            return into.at[_index(target.mine(write, into), axis, places)].set(
                span, mode="drop", unique_indices=False, wrap_negative_indices=False
            )

        return (tuple(map(move, into, out_of, axes)),)

    return step


def _index(page: Array, axis: int, places: Array) -> tuple[Any, ...]:
    """Return the index of these places of a page; places follow the page axis."""
    return (page[:, None], *[slice(None)] * axis, places)
