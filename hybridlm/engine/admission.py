"""Admission by pages of the KV cache: sequences that join or are preempted.

A sequence joins if pages are free for its prompt and `ROOM`, and gets another page when the last is full. Without free
pages, states of the prefix cache are evicted, then the last joined sequence is preempted: it gives back row and pages,
waits in its old place, and recomputes its tokens.

A device's first sequence is never preempted, and requests for more pages than a device has are refused: one sequence
can always go on.
"""

import warnings
from collections.abc import Sequence
from typing import TypeVar

from hybridlm.engine.engine import Engine
from hybridlm.engine.reading import QueuedText
from hybridlm.engine.speculation import Speculation
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import RowPool
from ir_passes.host.page_owner import Page
from ir_passes.host.slot_owner import Slot
from models import KV_BLOCK

ROOM = KV_BLOCK
"""Reserved positions after a joining sequence's prompt."""


Q = TypeVar("Q", bound=ActiveSequence | QueuedText)


class Admission:
    """The pages of the sequences of one run."""

    def __init__(self, engine: Engine, speculation: Speculation | None):
        self._engine, self._speculation, self._warned = engine, speculation, False

    def enter(self, sequence: ActiveSequence, shared: Sequence[Page], pool: RowPool, may_wait: bool) -> Slot | None:
        """Acquire a row for a waiting sequence, with pages for its prompt and `ROOM`.

        Args:
            shared: pages of a cached state; a row of their device shares them.

        Raises:
            SlotsExhausted: no row or pages, and not `may_wait`.
        """
        positions = min(len(sequence.prompt) + ROOM, self._limit(sequence, pool))
        if not self._engine.make_room(positions, shared) and may_wait:
            return None
        return pool.acquire(positions, shared=shared)

    def short(self, sequences: Sequence[ActiveSequence], pool: RowPool) -> list[ActiveSequence]:
        slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
        indices = pool.short(slots, [self._positions_to_decode(sequence, pool) for sequence in sequences])
        return sorted((sequences[index] for index in indices), key=lambda sequence: sequence.order)

    def grow(self, sequence: ActiveSequence, pool: RowPool) -> bool:
        """Reserve pages for the next decode step of a sequence; False without free pages."""
        assert sequence.slot is not None
        positions = self._positions_to_decode(sequence, pool)
        if not pool.can_reserve(sequence.slot, positions):
            cache, device = self._engine.prefix_cache, pool.device_of(sequence.slot)
            if cache is None or not cache.make_room(pool, device, pool.missing(sequence.slot, positions)):
                return False
        pool.reserve(sequence.slot, positions)
        return True

    def last(self, sequence: ActiveSequence, joined: Sequence[Q], pool: RowPool) -> Q:
        """Return the sequence or text to preempt for a sequence: the last of its device.

        Raises:
            SlotsExhausted: no other sequence is on this device.
        """
        assert sequence.slot is not None
        device, slots = pool.device_of(sequence.slot), [self._slot(other) for other in joined]
        neighbours = [
            other
            for other, slot in zip(joined, slots, strict=True)
            if slot is not None and pool.device_of(slot) == device
        ]
        if len(neighbours) == 1:
            pool.reserve(sequence.slot, self._positions_to_decode(sequence, pool))
        return max(neighbours, key=lambda other: other.order)

    def count(self, sequence: ActiveSequence | QueuedText) -> None:
        self._engine.stats["preemptions"] += 1
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{sequence.subject} was preempted after {sequence.consumed} tokens, because all "
                f"{self._engine.cache_positions:,} positions of the KV cache are in use: it waits, and its tokens are "
                "read again. load(cache=) with more, or fewer lanes, avoids this; lm.stats['preemptions'] counts it",
                stacklevel=2,
            )

    def _slot(self, queued: ActiveSequence | QueuedText) -> Slot | None:
        return queued.slot_of(self._engine) if isinstance(queued, QueuedText) else queued.slot

    def _positions_to_decode(self, sequence: ActiveSequence, pool: RowPool) -> int:
        """Return a decoding sequence's positions after its next step, with drafts."""
        ahead = 0 if self._speculation is None else self._speculation.ahead
        return min(sequence.consumed + 1 + ahead, self._limit(sequence, pool))

    def _limit(self, sequence: ActiveSequence, pool: RowPool) -> int:
        drafts = 0 if self._speculation is None else self._speculation.head_drafts
        return min(sequence.request.positions(self._engine.context) + drafts, pool.blocks * KV_BLOCK)
