"""Rows of a pool: their holders, and copies of rows between pools.

A sequence is prefilled in a row of the prefill pool and continues in a row of a decode pool; pools have as many rows as
their steps have lanes. The copy is a separate step, one lane wide: it reads one row by a read map and writes one row by
a write map, in all arrays of the group.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.rows.split import WHOLE, SplitRows
from hybridlm.steps.structure import Rows
from ir_passes import LaneContract, Pool, SlotMap
from ir_passes.host.slot_owner import Slot, SlotError, SlotFault, SlotOwner


class RowsLost(RuntimeError):
    """The arrays of a pool were passed to a step that was interrupted."""


class RowPool:
    """The rows of one pool.

    Attributes:
        size: rows, and lanes of the steps that run on them.
        owner: holder of each row.
        settled: whether the number of tokens that each row has consumed is known.
    """

    def __init__(self, rows: Rows):
        self.size = int(rows.token.shape[0])
        self._rows: Rows | None = rows
        self.vacate()

    def vacate(self) -> None:
        """Release all rows; their contents stay, and mean nothing."""
        self.owner = SlotOwner(self.size, "state", null=False)
        self._consumed = np.zeros(self.size, np.int32)
        self.settled = True

    def acquire(self) -> Slot:
        """Return a free row without consumed tokens; raises `SlotsExhausted` if all are held."""
        slot = self.owner.acquire()
        self.moved(slot, 0)
        return slot

    def consumed(self, slot: Slot) -> int:
        """Return the tokens that dispatched steps have consumed in a row since its acquisition.

        Raises:
            SlotError: a dispatched step decides the number, and its result has not been read.
        """
        if not self.settled:
            message = "how many tokens the rows have consumed is not known before their last step has been read"
            raise SlotError(SlotFault.UNREAD.fault("", message))
        return int(self._consumed[self.lanes([slot])[0]])

    def advance(self, counts: np.ndarray | None) -> None:
        """Record the tokens per row of a dispatched step, int32 [size].

        None means that the step decides the numbers, and its result is unread.
        """
        self.settled = counts is not None
        if counts is not None:
            self._consumed += counts

    def moved(self, slot: Slot, consumed: int) -> None:
        """Record that a row is now a copy with this many consumed tokens."""
        self._consumed[self.lanes([slot])[0]] = consumed

    def take(self) -> Rows:
        """Take the arrays for a step that donates them; `put` must follow.

        Raises:
            RowsLost: they were taken and not put back: a step was interrupted.
        """
        rows, self._rows = self._rows, None
        if rows is None:
            raise RowsLost("a step was interrupted while it had the rows of its sequences; begin these again")
        return rows

    def put(self, rows: Rows) -> None:
        """Put back the arrays that a step returned."""
        self._rows = rows

    def look(self) -> Rows:
        """Return the arrays, for a step that only reads them. Raises as `take`."""
        rows = self.take()
        self._rows = rows
        return rows

    @property
    def whole(self) -> bool:
        """Whether the arrays are in the pool."""
        return self._rows is not None

    def lanes(self, slots: list[Slot]) -> list[int]:
        """Return the row numbers of distinct live slots; raises `SlotError` if they are not."""
        return self.owner.bind(slots, len(slots)).tolist()


class PoolPart:
    """Some arrays of a pool that a step reads, or takes and replaces."""

    def __init__(self, pool: RowPool, places: Sequence[int]):
        self.pool, self.places = pool, places
        self._leaves: list[Any] = []

    def look(self) -> tuple[jax.Array, ...]:
        """Return the arrays, for a step that only reads them. Raises as `RowPool.take`."""
        leaves = jax.tree.leaves(self.pool.look())
        return tuple(leaves[i] for i in self.places)

    def take(self) -> tuple[jax.Array, ...]:
        """Take the arrays for a step that donates them; `put` must follow.

        Raises as `RowPool.take`.
        """
        self._leaves, self._tree = jax.tree.flatten(self.pool.take())
        return tuple(self._leaves[i] for i in self.places)

    def put(self, arrays: Sequence[jax.Array]) -> None:
        """Put back the arrays that a step returned."""
        for i, array in zip(self.places, arrays, strict=True):
            self._leaves[i] = array
        self.pool.put(jax.tree.unflatten(self._tree, self._leaves))
        self._leaves = []


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
    """Return the contract of `copy_row` between pools of `source` and `target` rows."""
    maps: tuple[Any, ...] = (
        SlotMap("source", source, "read", null=False),
        SlotMap("target", target, "write", null=False),
    )
    return LaneContract(inputs=(Pool("target"), Pool("source"), *maps), outputs=(Pool("target"),))
