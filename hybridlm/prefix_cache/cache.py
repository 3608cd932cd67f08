"""The prefix cache (`load(prefix_cache=)`): states of earlier prompts with the same prefix.

A radix tree maps tokens to states; `CacheMemory` tracks their arrays. A prompt continues from the deepest state: its
row shares the full pages of keys and values, and gets copies of everything else.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hybridlm.prefix_cache.budget import CacheBudget
from hybridlm.prefix_cache.memory import CacheMemory
from hybridlm.prefix_cache.moves import RowMoves, buffers_by_block
from hybridlm.prefix_cache.radix_tree import Node, RadixTree, TreeError, common_length
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.cached_buffers import CachedBuffers, KeptPage
from hybridlm.rows.pool import RowPool
from hybridlm.rows.snapshot import Snapshot
from ir_passes.host.slot_owner import Slot
from models import KV_BLOCK

MAX_CHUNKS_BETWEEN_STATES = 8
"""Most chunks between two cached states of a prompt."""

CacheNode = Node[Snapshot, CachedBuffers]


class PrefixCache:
    """The cached states of one model.

    Raises:
        ValueError: the budget holds no state.
    """

    def __init__(self, moves: RowMoves, budget: CacheBudget, chunk: int):
        min_bytes = moves.state_bytes + (moves.span_bytes if moves.grows else 0)
        if budget.device < min_bytes:
            raise ValueError(
                f"prefix_cache: {budget.device:,} B on the device hold no state of this model, nothing would ever be "
                f"found; the smallest needs {min_bytes:,} B ({moves.state_bytes:,} B whatever its length, and "
                f"{moves.span_bytes:,} B for every {KV_BLOCK} positions of keys and values)"
            )
        self._moves, self._chunk = moves, chunk
        self._tree: RadixTree[Snapshot, CachedBuffers] = RadixTree(moves.grows)
        self._nodes: dict[CachedBuffers, CacheNode] = {}
        # The memory must not refer back to the cache: all states are freed with it.
        self._drop = partial(_drop, self._tree, self._nodes)
        self._memory = CacheMemory(budget, self._drop, moves.copied)
        self._lock = threading.RLock()
        self._hits = self._misses = self._refused = 0

    @property
    def stats(self) -> dict[str, int]:
        """Hits, misses, states, bytes, spills, evictions and refused states."""
        memory = self._memory
        return {
            "prefix_hits": self._hits,
            "prefix_misses": self._misses,
            "prefix_states": len(self._nodes),
            "prefix_device_bytes": memory.device_bytes,
            "prefix_host_bytes": memory.host_bytes,
            "prefix_spills": memory.spills,
            "prefix_evictions": memory.evictions,
            "prefix_too_large": self._refused,
        }

    @contextmanager
    def pinned(self, prompt: Sequence[int], start: Snapshot | None) -> Iterator[Snapshot | None]:
        """Pin a prompt's deepest cached state in a `with` block, against eviction.

        At least one prompt token is left.

        Args:
            start: state to continue from in any case.
        """
        with self._lock:
            node = self._tree.deepest(prompt, len(prompt) - 1)
            snapshot = None if node is None else node.state
            if snapshot is None or (start is not None and start.position >= snapshot.position):
                yield start
                return
            assert node is not None
            pinned = replace(snapshot, spans=node.all_spans)
            used = _arrays(node)
            for buffers in used:
                buffers.refcount += 1
            try:
                yield pinned
            finally:
                for buffers in used:
                    buffers.refcount -= 1

    def restore(
        self, snapshot: Snapshot | None, start: Snapshot | None, pool: RowPool, slot: Slot, prompt: Sequence[int],
        owner: Any,
    ) -> int:  # fmt: skip
        """Restore a pinned state into a prompt's row; return the consumed tokens.

        Its host buffers move to the device, if there is room.
        """
        if snapshot is start:
            self._misses += 1
            return 0 if start is None else self._moves.restore(start, pool, slot, prompt, owner=owner)
        self._hits += 1
        assert snapshot is not None and snapshot.state is not None
        full, used = self._moves.full_pages(snapshot.position), buffers_by_block(snapshot.spans)
        for buffers in (snapshot.state, *reversed(used.values())):
            self._memory.add(buffers)
            if buffers is snapshot.state or buffers.position >= full * KV_BLOCK:
                self._memory.page_in(buffers)
        consumed = self._moves.restore(snapshot, pool, slot, prompt, owner=owner)
        for block in range(full):
            self._memory.page_in(used[block], lambda block=block: KeptPage(pool, pool.keep_page(slot, block)))
        return consumed

    def make_room(self, pool: RowPool, device: int, pages: int) -> bool:
        """Evict states until so many pages are free; return whether they are."""
        with self._lock:
            while pool.free_pages(device) < pages:
                if not self._memory.free_page(device):
                    return False
        return True

    def lose_pages(self) -> None:
        with self._lock:
            states = self._nodes.values()
            self._drop_all(node for node in states if any(buffers.page for buffers in _arrays(node)))

    def clear(self) -> None:
        with self._lock:
            self._drop_all(self._nodes.values())

    def _drop_all(self, nodes: Iterable[CacheNode]) -> None:
        for node in list(nodes):
            if node.state is not None and node.state.state is not None:
                self._memory.discard(self._drop(node.state.state) or ())

    def should_wait(self, prompt: Sequence[int], reading: Sequence[ActiveSequence]) -> bool:
        """Whether to wait until a prefill has cached a common prefix of a chunk.

        Args:
            reading: prompts in prefill; they get a stop at the end of the common prefix.
        """
        with self._lock:
            node = self._tree.deepest(prompt, len(prompt) - 1)
        cached, tokens = 0 if node is None else node.position, tuple(prompt)
        for other in reading:
            shared = min(common_length(tokens, other.prompt), len(tokens) - 1)
            meets = max((stop for stop in other.stops if stop <= shared), default=0)
            if shared - meets >= self._chunk and shared > other.consumed:
                other.stops, meets = tuple(sorted({*other.stops, shared})), shared
            if other.consumed < meets and meets - cached >= self._chunk:
                return True
        return False

    def stops(self, prompt: Sequence[int], begin: int) -> tuple[int, ...]:
        """Return the sorted positions to cache in a prompt prefilled from `begin` on.

        These are the prompt's end; the beginning of its last step, for the same prompt; the end of the cached part, if
        that saves a chunk; and the end of every `MAX_CHUNKS_BETWEEN_STATES`-th chunk.
        """
        with self._lock:
            cached = self._tree.match(prompt).length
        cut = cached if begin + self._chunk <= cached < len(prompt) else len(prompt)
        stops, position = {cut}, begin
        while position < len(prompt):
            end = min(position + self._chunk, len(prompt), *([cut] if position < cut else []))
            if end == len(prompt):
                stops |= {position, end} - {begin}
            if end // (MAX_CHUNKS_BETWEEN_STATES * self._chunk) > position // (MAX_CHUNKS_BETWEEN_STATES * self._chunk):
                stops.add(end)
            position = end
        return tuple(sorted(stops))

    def keep(self, pool: RowPool, slot: Slot, tokens: Sequence[int], owner: Any) -> None:
        """Cache a row's state, if it is new and fits after evictions.

        Raises:
            SnapshotError: it has consumed another number of tokens.
        """
        with self._lock:
            match = self._tree.match(tokens)
            if match.length == len(tokens) and match.into is None and match.node.state is not None:
                self._use(match.node)
                return
            while True:
                cached_spans = self._tree.known(tokens)
                needed = self._moves.bytes_of(len(tokens), sum(span.count for span in cached_spans))
                if self._memory.fits(needed):
                    break
                if needed > self._memory.budget.device or not self._memory.evict_one():
                    self._refused += 1
                    return
            snapshot = self._moves.take(pool, slot, tokens, owner, cached_spans, share=True)
            # Spans belong to the edges, which may be split and shared later.
            node = self._tree.insert(tokens, replace(snapshot, spans=()), snapshot.spans[len(cached_spans) :])
            assert snapshot.state is not None
            self._nodes[snapshot.state] = node
            self._use(node)

    def invalidate(self, tokens: Sequence[int]) -> None:
        """Remove all cached states along tokens with a wrong result."""
        with self._lock:
            self._drop_all(self._tree.match(tokens).node.path)

    def check_integrity(self) -> None:
        """Check the tree, and its buffers against the budgets; raises TreeError."""
        with self._lock:
            self._tree.check_integrity()
            states = {node.state.state for node in self._tree.nodes() if node.state is not None}
            buffers = {state for state in states if state is not None} | self._tree.buffers()
            faults = self._memory.faults(buffers)
            if states != set(self._nodes) or any(node.parent is None for node in self._nodes.values()):
                faults.append(f"{len(states)} states in the tree, {len(self._nodes)} places of states")
            if any(buffer.refcount for buffer in buffers):
                faults.append("buffers that are still pinned after use")
            if faults:
                raise TreeError("; ".join(faults))

    def _use(self, node: CacheNode) -> None:
        """Mark a state as used, then its spans from the last on."""
        state, *spans = _arrays(node)
        for buffers in (state, *reversed(spans)):
            self._memory.add(buffers)


def _drop(
    tree: RadixTree[Snapshot, CachedBuffers], places: dict[CachedBuffers, CacheNode], buffers: CachedBuffers
) -> list[CachedBuffers] | None:
    """Remove a state; return its buffers and unneeded spans, or None for other buffers.

    Raises:
        TreeError: the state is in use.
    """
    node = places.get(buffers)
    if node is None:
        return None
    if buffers.refcount:
        raise TreeError(f"a state at position {buffers.position} cannot be dropped while it is in use")
    del places[buffers]
    return [buffers, *tree.remove(node)]


def _arrays(node: CacheNode) -> list[CachedBuffers]:
    state = [] if node.state is None or node.state.state is None else [node.state.state]
    return [*state, *dict.fromkeys(span.buffer for span in node.all_spans)]
