"""The two parts of a row and their moves: fixed-size state, growing KV cache.

Fixed-size state is moved completely; of keys and values the first positions of one page. A pool may be split over a
mesh axis: None for one that is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from ir_passes import Lane, LaneContract, Pool, SlotMap
from models import KV_BLOCK
from models.state.state import StateArray

RowPart = Literal["state", "span"]


@dataclass(frozen=True)
class PartShape:
    """Compilation key of a move of a row's part between a pool and cached buffers.

    Attributes:
        part: "state": the arrays of fixed size; "span": the first positions of a page of the growing arrays.
        kept: out of the pool, otherwise back into it.
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
        return tuple(array for array in jax.tree.leaves(rows) if array.grows == (self.part == "span"))

    def step(self, axis: str | None = None) -> tuple[Callable[..., Any], LaneContract]:
        """Return the uncompiled step and its contract; `axis` splits the pool, not cached buffers."""
        source, target = (self.pool, self.rows) if self.kept else (self.rows, self.pool)
        contract = copy_contract(source, target)
        axes = (axis, None) if self.kept else (None, axis)
        if self.part == "state":
            return copy_row(*axes), contract
        contract = LaneContract(inputs=(*contract.inputs, Lane()), outputs=contract.outputs)
        return copy_places(self.axes, *axes), contract


def copy_row(source: str | None = None, target: str | None = None) -> Callable[..., tuple[Any]]:
    """`step(target, source, read, write) -> (target,)`: row `read[0]` becomes row `write[0]`, in every array.

    Source and target have the same structure; `read` and `write` are int32 [1]. `source` and `target` are mesh axes.
    """

    def copy_row(into: Any, out_of: Any, read: jax.Array, write: jax.Array) -> tuple[Any]:
        def copy(into: jax.Array, out_of: jax.Array) -> jax.Array:
            row = take_row(out_of, read, source)
            return into.at[local_row(write, into, target)].set(
                row, mode="drop", unique_indices=True, wrap_negative_indices=False
            )

        return (jax.tree.map(copy, into, out_of),)

    return copy_row


def copy_contract(source: int, target: int) -> LaneContract:
    maps: tuple[Any, ...] = (
        SlotMap("source", source, "read", null=False),
        SlotMap("target", target, "write", null=False),
    )
    return LaneContract(inputs=(Pool("target"), Pool("source"), *maps), outputs=(Pool("target"),))


def copy_places(
    axes: Sequence[int], source: str | None = None, target: str | None = None
) -> Callable[..., tuple[tuple[Array, ...]]]:
    """Return a step that copies the first positions of one page to another.

    `step(target, source, read, write, count) -> (target,)` copies from page `read[0]` to page `write[0]`. Arrays are
    [page, .., place, ..], with the axis of places in `axes`; other arguments are int32 [1].
    """

    def step(
        into: tuple[Array, ...], out_of: tuple[Array, ...], read: Array, write: Array, count: Array
    ) -> tuple[tuple[Array, ...]]:
        place = jnp.arange(KV_BLOCK, dtype=jnp.int32)[None]
        # Other places get the same index past the end: they are filled with zeros, and dropped.
        places = jnp.where(place < count[:, None], place, KV_BLOCK)

        def move(into: Array, out_of: Array, axis: int) -> Array:
            span = take_row(out_of, read, source, lambda page: _index(page, axis, places))
            return into.at[_index(local_row(write, into, target), axis, places)].set(
                span, mode="drop", unique_indices=False, wrap_negative_indices=False
            )

        return (tuple(map(move, into, out_of, axes)),)

    return step


def _index(page: Array, axis: int, places: Array) -> tuple[Any, ...]:
    """Return the index of these places of a page; places follow the page axis."""
    return (page[:, None], *[slice(None)] * axis, places)


def local_row(row: Array, pool: Array, axis: str | None) -> Array:
    """Return a row's number on this device; other devices' rows are outside."""
    return row if axis is None else row - lax.axis_index(axis) * pool.shape[0]


def take_row(pool: Array, row: Array, axis: str | None, part: Callable[[Array], Any] | None = None) -> Array:
    """Return a row of a pool [row, ..] on every device; `row` is int32 [1].

    Args:
        part: row's number on the device -> index of a part, with zeros outside of the row; None for the whole row.
    """
    local = local_row(row, pool, axis)
    index = local if part is None else part(local)
    fill = None if axis is None and part is None else 0
    values = pool.at[index].get(mode="fill", fill_value=fill, unique_indices=part is None, wrap_negative_indices=False)
    return values if axis is None else _sum_of_bits(values, axis)


def _sum_of_bits(x: Array, axis: str) -> Array:
    """All-reduce an array that is zero on all but one device, as integers.

    A float sum would not keep signs: -0.0 + 0.0 is 0.0.
    """
    if jnp.issubdtype(x.dtype, jnp.integer):
        return lax.psum(x, axis)
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return lax.bitcast_convert_type(lax.psum(bits, axis), x.dtype)
