"""States of prompts that were read, for later prompts that begin with the same tokens (`load(prefix_cache=)`).

A radix tree says which tokens lie before which state; `CacheMemory` where its arrays are. A prompt goes on from the
deepest state that it reaches, by the same moves as from an explicit prefix.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hybridlm.prefix_cache.budget import CacheBudget
from hybridlm.prefix_cache.memory import CacheMemory
from hybridlm.prefix_cache.moves import RowMoves
from hybridlm.prefix_cache.radix_tree import Node, RadixTree, TreeError, common_length
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import RowPool
from hybridlm.rows.snapshot import Snapshot
from ir_passes.host.slot_owner import Slot
from models import KV_BLOCK

MAX_CHUNKS_BETWEEN_STATES = 8
"""A state is kept at least every so many chunks of a long prompt."""

Place = Node[Snapshot, CachedBuffers]


class PrefixCache:
    """The states of one model.

    Args:
        moves: takes states out of rows.
        budget: most bytes.
        chunk: tokens of a prompt consumed by one step.

    Raises:
        ValueError: the budget holds no state at all.
    """

    def __init__(self, moves: RowMoves, budget: CacheBudget, chunk: int):
        least = moves.state_bytes + (moves.span_bytes if moves.grows else 0)
        if budget.device < least:
            raise ValueError(
                f"prefix_cache: {budget.device:,} B on the device hold no state of this model, nothing would ever be "
                f"found; the smallest needs {least:,} B ({moves.state_bytes:,} B whatever its length, and "
                f"{moves.span_bytes:,} B for every {KV_BLOCK} positions of keys and values)"
            )
        self._moves, self._chunk = moves, chunk
        self._tree: RadixTree[Snapshot, CachedBuffers] = RadixTree(moves.grows)
        self._places: dict[CachedBuffers, Place] = {}
        # Not a method: a tree of states refers to nothing that refers to it, so that all go with the cache.
        self._drop = partial(_drop, self._tree, self._places)
        self._memory = CacheMemory(budget, self._drop)
        self._lock = threading.RLock()
        self._hits = self._misses = self._refused = 0

    @property
    def stats(self) -> dict[str, int]:
        """Prompts that went on from a state and that found none; what is held; what was moved, dropped and not kept."""
        memory = self._memory
        return {
            "prefix_hits": self._hits,
            "prefix_misses": self._misses,
            "prefix_states": len(self._places),
            "prefix_device_bytes": memory.device_bytes,
            "prefix_host_bytes": memory.host_bytes,
            "prefix_spills": memory.spills,
            "prefix_evictions": memory.evictions,
            "prefix_too_large": self._refused,
        }

    @contextmanager
    def pinned(self, prompt: Sequence[int], start: Snapshot | None) -> Iterator[Snapshot | None]:
        """The deepest state that a prompt can go on from, to be used inside a `with`: it cannot be dropped there.

        At least one token of the prompt is left, which predicts what comes behind it.

        Args:
            prompt: its tokens.
            start: a state that it can go on from in any case.
        """
        with self._lock:
            place = self._tree.deepest(prompt, len(prompt) - 1)
            snapshot = None if place is None else place.state
            if snapshot is None or (start is not None and start.label.position >= snapshot.label.position):
                self._misses += 1
                yield start
                return
            self._hits += 1
            assert place is not None
            pinned = replace(snapshot, spans=place.all_spans)
            used = _arrays(place)
            for kept in used:
                kept.refcount += 1
            try:
                for kept in used:
                    self._memory.add(kept)
                    self._memory.page_in(kept)
                yield pinned
            finally:
                for kept in used:
                    kept.refcount -= 1

    def cached_length(self, prompt: Sequence[int], start: Snapshot | None) -> int:
        """After how many tokens a prompt would go on now; arguments as for `pinned`."""
        with self._lock:
            place = self._tree.deepest(prompt, len(prompt) - 1)
        return max(0 if place is None else place.position, 0 if start is None else start.label.position)

    def should_wait(self, prompt: Sequence[int], reading: Sequence[ActiveSequence]) -> bool:
        """Whether a prompt had better wait until one of those that are being read has got as far as both go together.

        It would save reading a chunk at least, and what is being read leaves a state there.

        Args:
            prompt: its tokens.
            reading: prompts that are being read; a stop is added to them where they have none.
        """
        found, tokens = self.cached_length(prompt, None), tuple(prompt)
        for other in reading:
            shared = min(common_length(tokens, other.request.prompt), len(tokens) - 1)
            meets = max((stop for stop in other.stops if stop <= shared), default=0)
            if shared - meets >= self._chunk and shared > other.consumed:
                other.stops, meets = tuple(sorted({*other.stops, shared})), shared
            if other.consumed < meets and meets - found >= self._chunk:
                return True
        return False

    def stops(self, prompt: Sequence[int], begin: int) -> tuple[int, ...]:
        """After which tokens of a prompt that is read from `begin` on its state is to be kept, in order.

        At its end: a conversation goes on from there. Where the last step of it begins: the same prompt again goes on
        from there, because one token has to be left. Where it leaves what is known, if that saves a later prompt a
        chunk: there its step is cut short. And every `MAX_CHUNKS_BETWEEN_STATES` chunks.

        Args:
            prompt: its tokens.
            begin: how many of them have been consumed.
        """
        with self._lock:
            known = self._tree.match(prompt).length
        cut = known if begin + self._chunk <= known < len(prompt) else len(prompt)
        stops, at = {cut}, begin
        while at < len(prompt):
            end = min(at + self._chunk, len(prompt), *([cut] if at < cut else []))
            if end == len(prompt):
                stops |= {at, end} - {begin}
            if end // (MAX_CHUNKS_BETWEEN_STATES * self._chunk) > at // (MAX_CHUNKS_BETWEEN_STATES * self._chunk):
                stops.add(end)
            at = end
        return tuple(sorted(stops))

    def keep(self, pool: RowPool, slot: Slot, tokens: Sequence[int], owner: Any) -> None:
        """Keep the state of a row, if it is not known and there is or can be made room.

        Args:
            pool, slot: the row.
            tokens: all that it has consumed.
            owner: what owns it.

        Raises:
            SnapshotError: it has consumed another number of tokens.
        """
        with self._lock:
            match = self._tree.match(tokens)
            if match.length == len(tokens) and match.into is None and match.node.state is not None:
                self._use(match.node)
                return
            while True:
                known = self._tree.known(tokens)
                needed = self._moves.bytes_of(len(tokens), sum(span.count for span in known))
                if self._memory.fits(needed):
                    break
                if needed > self._memory.budget.device or not self._memory.evict_one():
                    self._refused += 1
                    return
            snapshot = self._moves.take(pool, slot, tokens, owner, known)
            # The spans belong to the edges, which may be cut and shared later; the node has what is its own.
            place = self._tree.insert(tokens, replace(snapshot, spans=()), snapshot.spans[len(known) :])
            assert snapshot.state is not None
            self._places[snapshot.state] = place
            self._use(place)

    def invalidate(self, tokens: Sequence[int]) -> None:
        """Let go of every state that these tokens reach: something that they led to was wrong."""
        with self._lock:
            for place in self._tree.match(tokens).node.path:
                if place.state is not None and place.state.state is not None:
                    self._memory.discard(self._drop(place.state.state) or ())

    def check_integrity(self) -> None:
        """The tree is whole, and what it refers to is what is accounted for, within the budgets.

        Raises:
            TreeError: with everything that is wrong.
        """
        with self._lock:
            self._tree.check_integrity()
            states = {place.state.state for place in self._tree.nodes() if place.state is not None}
            kept = {one for one in states if one is not None} | self._tree.buffers()
            faults = self._memory.faults(kept)
            if states != set(self._places) or any(self._places[one].parent is None for one in self._places):
                faults.append(f"{len(states)} states in the tree, {len(self._places)} places of states")
            if any(one.refcount for one in kept):
                faults.append("arrays that are pinned, and nobody uses them")
            if faults:
                raise TreeError("; ".join(faults))

    def _use(self, place: Place) -> None:
        """The state of a place is used now, and after it, so that they stay longer, the spans before it."""
        for kept in _arrays(place):
            self._memory.add(kept)


def _drop(
    tree: RadixTree[Snapshot, CachedBuffers], places: dict[CachedBuffers, Place], kept: CachedBuffers
) -> list[CachedBuffers] | None:
    """Take a state out of the tree; returns it and the spans that lead to no other, None for what is no state.

    Raises:
        TreeError: it is in use.
    """
    place = places.get(kept)
    if place is None:
        return None
    if kept.refcount:
        raise TreeError(f"a state at position {kept.position} cannot be dropped while it is in use")
    del places[kept]
    return [kept, *tree.remove(place)]


def _arrays(place: Place) -> list[CachedBuffers]:
    """All arrays of the state at a place, each once: those of fixed size, then the spans."""
    state = [] if place.state is None or place.state.state is None else [place.state.state]
    return [*state, *dict.fromkeys(span.buffer for span in place.all_spans)]
