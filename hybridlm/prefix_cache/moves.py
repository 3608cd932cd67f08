"""Moves of states between pool rows and cached buffers, by certified steps."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.programs.runner import Move, Runner, Tallies
from hybridlm.rows.arrays import maker_of_zeros
from hybridlm.rows.cached_buffers import BufferSpan, CachedBuffers, KeptPage
from hybridlm.rows.parts import PartShape, RowPart
from hybridlm.rows.pool import PoolPart, RowPool
from hybridlm.rows.snapshot import Snapshot, SnapshotError, StateKind, nothing_consumed, require_consumed, token_hash
from hybridlm.steps.structure import Rows
from ir_passes.host.page_owner import Page
from ir_passes.host.row_ledger import Label
from ir_passes.host.slot_owner import Slot
from models import KV_BLOCK, kv_blocks


class RowMoves:
    """Moves states between rows and cached buffers.

    Args:
        rows: (rows, pages) -> ShapeDtypeStructs of a pool.
        head: the model has an MTP head, with keys and values by the next token, which differs where sequences part.

    Attributes:
        state_bytes, span_bytes: of fixed-size buffers, and of a page.
    """

    def __init__(
        self,
        runner: Runner,
        kind: StateKind,
        rows: Callable[[int, int], Rows],
        placement: Placement,
        stats: Tallies,
        head: bool = False,
    ):
        self._runner, self._rows, self._placement = runner, rows, placement
        self.kind, self._stats = kind, stats
        self._unfinished = 1 if head else 0  # last positions that the next step writes again
        layout = kind.layout
        self._part_indices: dict[RowPart, list[int]] = {
            "state": [i for i, array in enumerate(layout) if array.positions is None],
            "span": [i for i, array in enumerate(layout) if array.positions is not None],
        }
        self._axes = tuple(array.positions for array in layout if array.positions is not None)
        self._buffer_types = {part: self._types(part) for part in self._part_indices}
        self._empty = {part: maker_of_zeros(buffers) for part, buffers in self._buffer_types.items()}
        self.grows = bool(self._axes)
        self.state_bytes, self.span_bytes = (
            sum(leaf.size * leaf.dtype.itemsize for leaf in self._buffer_types[part]) for part in ("state", "span")
        )

    def shapes(self, rows: int, pages: int) -> list[PartShape]:
        parts: list[tuple[RowPart, int]] = [("state", rows), *([("span", pages)] if self.grows else [])]
        return [self._shape(part, keep, size) for part, size in parts for keep in (True, False)]

    def bytes_of(self, position: int, cached: int) -> int:
        """Return the additional bytes of a state if `cached` tokens have buffers."""
        return self.state_bytes + len(self._new_blocks(position, cached)) * self.span_bytes

    def _new_blocks(self, position: int, cached: int) -> range:
        if not self.grows or cached >= position:
            return range(0)
        return range(max(0, cached - self._unfinished) // KV_BLOCK, kv_blocks(position))

    def full_pages(self, position: int) -> int:
        """Return the pages of a state that no later step writes."""
        return max(0, position - self._unfinished) // KV_BLOCK if self.grows else 0

    def shareable(self, snapshot: Snapshot) -> list[Page]:
        """Return the first full pages of a state in the pool, on one device."""
        pages, buffers = list[KeptPage](), buffers_by_block(snapshot.spans)
        for block in range(self.full_pages(snapshot.position)):
            page = buffers[block].page
            if page is None or (pages and page.device != pages[0].device):
                break
            pages.append(page)
        return [page.right for page in pages]

    def example_arguments(self, shape: PartShape) -> tuple[Any, ...]:
        pool = self._part(jax.tree.leaves(self._rows(shape.pool, shape.pool)), shape.part)
        buffers = self._buffer_types[shape.part]
        count = 2 if shape.part == "state" else 3
        scalars = self._placement.examples((np.zeros(1, np.int32),) * count, replicated=True)
        return (buffers, pool, *scalars) if shape.kept else (pool, buffers, *scalars)

    def take(
        self,
        pool: RowPool,
        slot: Slot,
        tokens: Sequence[int],
        owner: Any,
        cached: Sequence[BufferSpan[CachedBuffers]] = (),
        share: bool = False,
    ) -> Snapshot:
        """Copy a row's state after the dispatched steps.

        Args:
            cached: spans of the row's first positions.
            share: keep full pages of the row instead of copies.

        Raises:
            SnapshotError: the row has consumed another number of tokens.
        """
        position = len(tokens)
        require_consumed(pool, slot, position)
        if not tokens:
            return nothing_consumed(self.kind)
        mark = self._runner.mark(owner)
        spans, cached_count = list(cached), sum(span.count for span in cached)
        full = self.full_pages(position) if share else 0
        for block in self._new_blocks(position, cached_count):
            begin, end = block * KV_BLOCK, min((block + 1) * KV_BLOCK, position)
            if block < full:
                page = KeptPage(pool, pool.keep_page(slot, block))
                buffers = CachedBuffers.in_pool(page, self.span_bytes, begin, mark)
            else:
                buffers = self._copy("span", pool, _scalars(pool.page(slot, block), 0, end - begin), begin, mark)
            # With an MTP head the span may be empty: the last position of a full page before it has its final values.
            first = min(max(cached_count, begin), end) - begin
            spans.append(BufferSpan(buffers, first, end - begin - first))
        state = self.keep_state(pool, slot, owner)
        return Snapshot(self.kind, position, token_hash(tokens), slot.epoch, state, tuple(spans), mark)

    @property
    def state_places(self) -> list[int]:
        return self._part_indices["state"]

    def keep_state(self, pool: RowPool, slot: Slot, owner: Any) -> CachedBuffers:
        """Copy a row's fixed-size arrays (`state_places`) after the dispatched steps."""
        maps = pool.owner.bind([slot], 1), *_scalars(0)
        return self._copy("state", pool, maps, pool.consumed(slot), self._runner.mark(owner))

    def require(self, snapshot: Snapshot) -> None:
        """Raise SnapshotError for a snapshot that cannot be continued here."""
        snapshot.require(self.kind)
        if snapshot.state is None:
            return
        for array, kind in zip(snapshot.state.arrays, self._buffer_types["state"], strict=True):
            if isinstance(array, jax.Array) and not _may_move(array, kind):
                raise SnapshotError(
                    f"a state of {len(array.sharding.device_set)} devices cannot be continued by a model on others; "
                    "write it with Prefix.save and read it with lm.load_prefix"
                )

    def restore(self, snapshot: Snapshot, pool: RowPool, slot: Slot, tokens: Sequence[int], owner: Any) -> int:
        """Restore a snapshot into a new row; return the consumed tokens.

        Raises:
            SnapshotError: another model, or other tokens.
        """
        self.require(snapshot)
        snapshot.require_tokens(tokens)
        if snapshot.state is not None:
            self._restore(snapshot.state, "state", pool, (*_scalars(0), pool.owner.bind([slot], 1)))
        for block, buffers in buffers_by_block(snapshot.spans).items():
            number, page = pool.page(slot, block), buffers.page
            if page is not None and page.number == number:
                continue  # the row shares it
            count = min(KV_BLOCK, snapshot.position - block * KV_BLOCK)
            source = self.copied(buffers) if page is not None else buffers
            self._restore(source, "span", pool, _scalars(0, number, count), snapshot.mark)
        pool.moved(slot, snapshot.position)
        self._runner.adopt(owner, snapshot.mark)
        self._stats.add("prefix_tokens_saved", snapshot.position)
        return snapshot.position

    def copied(self, buffers: CachedBuffers) -> CachedBuffers:
        page = buffers.page
        if page is None:
            return buffers
        return self._copy("span", page.pool, _scalars(page.number, 0, KV_BLOCK), buffers.position, buffers.mark)

    def filled(self, arrays: Sequence[np.ndarray], position: int, tokens: str, epoch: int) -> Snapshot:
        """Build a snapshot from foreign arrays in layout order."""
        state = self._from_host("state", [arrays[i] for i in self._part_indices["state"]], position)
        spans = []
        for first in range(0, position if self.grows else 0, KV_BLOCK):
            count, padded = min(KV_BLOCK, position - first), []
            for i, axis in zip(self._part_indices["span"], self._axes, strict=True):
                part = arrays[i].take(range(first, first + count), axis)
                padding = [(0, KV_BLOCK - count if dim == axis else 0) for dim in range(part.ndim)]
                padded.append(np.pad(part, padding))
            spans.append(BufferSpan(self._from_host("span", padded, first), 0, count))
        mark = self._runner.stamp([state, *(span.buffer for span in spans)], position)
        return Snapshot(self.kind, position, tokens, epoch, state, tuple(spans), mark)

    def _from_host(self, part: RowPart, arrays: list[np.ndarray], position: int) -> CachedBuffers:
        rows = tuple(np.broadcast_to(array, (self._runner.min_rows, *array.shape)).copy() for array in arrays)
        places = tuple(buffer_type.sharding for buffer_type in self._buffer_types[part])
        return CachedBuffers(jax.device_put(rows, places), position, None)

    def _types(self, part: RowPart) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the types of cached buffers: `min_rows` rows or pages, not divided over devices."""
        count, types = self._placement.data, list[jax.ShapeDtypeStruct]()
        for array in self._part(jax.tree.leaves(self._rows(count, count)), part):
            _, *split = self._placement.dimensions(array)
            sharding, shape = self._placement.over(None, *split), (self._runner.min_rows, *array.shape[1:])
            types.append(jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding))
        return tuple(types)

    def _part(self, leaves: list[Any], part: RowPart) -> tuple[Any, ...]:
        return tuple(leaves[i] for i in self._part_indices[part])

    def _shape(self, part: RowPart, keep: bool, pool: int) -> PartShape:
        return PartShape(part, keep, pool, self._runner.min_rows, self._axes if part == "span" else ())

    def _copy(
        self, part: RowPart, pool: RowPool, maps: Sequence[np.ndarray], position: int, mark: Label | None
    ) -> CachedBuffers:
        """Copy a row's state or the first positions of a page; `maps` as of `Move`."""
        buffers = CachedBuffers(self._empty[part](), position, mark)
        shape, source = self._shape(part, True, _size(pool, part)), PoolPart(pool, self._part_indices[part])
        self._runner.move(Move(shape, buffers, source, maps), self.example_arguments)
        return buffers

    def _restore(
        self,
        buffers: CachedBuffers,
        part: RowPart,
        pool: RowPool,
        maps: tuple[np.ndarray, ...],
        mark: Label | None = None,
    ) -> None:
        target, shape = PoolPart(pool, self._part_indices[part]), self._shape(part, False, _size(pool, part))
        self._runner.move(Move(shape, target, buffers, maps, mark), self.example_arguments)


def _may_move(array: jax.Array, kind: jax.ShapeDtypeStruct) -> bool:
    """Whether a step takes an array: it is on the type's devices, or uncommitted."""
    devices = array.sharding.device_set
    if kind.sharding is None:
        return len(devices) == 1
    return not array.committed or devices == kind.sharding.device_set


def _size(pool: RowPool, part: RowPart) -> int:
    return pool.size if part == "state" else pool.pages


def buffers_by_block(spans: Sequence[BufferSpan[CachedBuffers]]) -> dict[int, CachedBuffers]:
    """Return the last buffers by block, with all its positions."""
    return {buffers.position // KV_BLOCK: buffers for buffers, _, _ in spans}


def _scalars(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.int32) for value in values)
