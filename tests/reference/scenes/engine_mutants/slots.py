"""Wrong rows and pages of lanes: exchanged, of an earlier step, or freed too early.

`PAGED_MUTANTS` need traffic in few pages.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder, replaced

from hybridlm.engine import scheduler
from hybridlm.engine.decoding import Decoding
from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import LaneMap, RowPool
from ir_passes.host.slot_owner import Slot


def mapped(patch: pytest.MonkeyPatch, change: Callable[[np.ndarray, RowPool], np.ndarray]) -> None:
    """Give the steps other rows: `change(slots, pool) -> slots`; the host keeps its own."""
    right = RowPool.arrange

    def arrange(self: RowPool, slots: Sequence[Slot], lanes: int) -> tuple[Sequence[int], LaneMap]:
        places, lane_map = right(self, slots, lanes)
        return places, lane_map._replace(slots=change(lane_map.slots.copy(), self))

    patch.setattr(RowPool, "arrange", arrange)


def reversed_once(patch: pytest.MonkeyPatch) -> None:
    steps = iter(range(10**9))
    mapped(patch, lambda slots, pool: slots[::-1].copy() if next(steps) == 4 else slots)


def next_row(patch: pytest.MonkeyPatch) -> None:
    """Prompts and answers have different numbers of lanes, and so different rows."""
    mapped(patch, lambda slots, pool: (slots + np.int32(len(slots) - 1)) % np.int32(pool.size))


def one_row_for_two(patch: pytest.MonkeyPatch) -> None:
    def change(slots: np.ndarray, pool: RowPool) -> np.ndarray:
        slots[1:2] = slots[:1]
        return slots

    mapped(patch, change)


def of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    """Slots stay on the device for all steps of as many lanes."""
    first_slots: dict[int, np.ndarray] = {}
    mapped(patch, lambda slots, pool: first_slots.setdefault(len(slots), slots))


@replaced(Scheduler, "_release_finished")
def given_back_before_the_last_step(right: Any, self: Scheduler, dispatched: Any) -> None:
    for sequence, _ in dispatched.sequences:
        if sequence.slot is not None and self._pool is not None and sequence.sampled == sequence.max_sampled - 1:
            self._pool.owner.release(sequence.slot)
    right(self, dispatched)


@replaced(Scheduler, "_start_decoding")
def decodes_in_another_row(right: Any, self: Scheduler, sequence: ActiveSequence) -> None:
    """A sequence exchanges rows with a decoding sequence at the end of its prompt."""
    if self.decoding:
        sequence.slot, self.decoding[0].slot = self.decoding[0].slot, sequence.slot
    right(self, sequence)


def idle_lanes_compute(patch: pytest.MonkeyPatch) -> None:
    """Idle lanes read a token in rows of unfinished prompts, between all their chunks."""
    patch.setattr(scheduler, "MAX_PREFILL_RUN", 1)
    right = Engine.run

    def run(self: Engine, shape: Any, pool: RowPool, rows: Any, inputs: Any, **about: Any) -> Any:
        if shape.tokens == 1:
            batch = inputs.batch._replace(lengths=np.ones(shape.lanes, np.int32))
            inputs = inputs._replace(batch=batch)
        return right(self, shape, pool, rows, inputs, **about)

    patch.setattr(Engine, "run", run)


@replaced(RowPool, "_grow")
def given_back_too_early(right: Any, self: RowPool, row: int, *about: Any) -> None:
    """A row with a new second page frees its first page too early."""
    before = len(self._row_pages[row])
    right(self, row, *about)
    if before == 1 and len(self._row_pages[row]) == 2 and self.page_owner is not None:
        self.page_owner.release(self._row_pages[row][0])


@replaced(RowPool, "arrange")
def one_page_for_two_lanes(
    right: Any, self: RowPool, slots: Sequence[Slot], lanes: int
) -> tuple[Sequence[int], LaneMap]:
    places, lane_map = right(self, slots, lanes)
    if lane_map.pages is None or lanes < 2 or not lane_map.pages[:2, 0].all():
        return places, lane_map
    pages = lane_map.pages.copy()
    pages[1, 0] = pages[0, 0]
    return places, lane_map._replace(pages=pages)


def table_of_an_earlier_sequence(patch: pytest.MonkeyPatch) -> None:
    """The device keeps the table of a row until its number of pages changes."""
    right = RowPool.arrange
    kept: dict[tuple[int, int], np.ndarray] = {}

    def arrange(self: RowPool, slots: Sequence[Slot], lanes: int) -> tuple[Sequence[int], LaneMap]:
        places, lane_map = right(self, slots, lanes)
        if lane_map.pages is None:
            return places, lane_map
        rows = [
            kept.setdefault((row, int(np.count_nonzero(lane))), lane)
            for row, lane in zip(lane_map.rows.tolist(), lane_map.pages, strict=True)
        ]
        return places, lane_map._replace(pages=np.stack(rows))

    patch.setattr(RowPool, "arrange", arrange)


@replaced(Scheduler, "_preempt")
def preempted_keeps_its_pages(right: Any, self: Scheduler, sequence: ActiveSequence) -> None:
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(RowPool, "_release_pages", lambda self, row: None)
        right(self, sequence)


def grows_without_a_page(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decoding, "grow", lambda self, sequence, pool: True)


@replaced(ActiveSequence, "begin_again")
def resumes_with_a_stale_count(right: Any, self: ActiveSequence) -> None:
    """A preempted sequence goes on at its old position, in an empty row."""
    consumed = self.consumed
    right(self)
    self.consumed = min(consumed, len(self.prompt) - 1)


@replaced(ActiveSequence, "begin_again")
def resumes_without_its_tokens(right: Any, self: ActiveSequence) -> None:
    """A preempted sequence reads its prompt alone, and samples its first tokens once more."""
    right(self)
    self.prompt = self.request.prompt


MUTANTS = (
    EngineMutant("slots-reversed", "tenstorrent#51", "one step has the slots of its lanes in another order",
                 Finder.SANITIZER, reversed_once),
    EngineMutant("slots-of-the-next-rows", "vLLM#53919", "a step counts rows from another base than the step before it",
                 Finder.SANITIZER, next_row),
    EngineMutant("two-lanes-in-one-row", "vLLM#37728", "two lanes of a step name one row", Finder.KERNEL,
                 one_row_for_two),
    EngineMutant("slots-of-the-step-before", "SGLang#39342", "slots on the device are used again for other sequences",
                 Finder.ALONE, of_the_step_before),
    EngineMutant("given-back-before-the-last-step", "TRT-LLM#13151",
                 "a row is free while its sequence has a token to sample", Finder.OWNER,
                 given_back_before_the_last_step),
    EngineMutant("decodes-in-another-row", "SGLang#26351",
                 "a finished prompt's state is not where the sequence decodes", Finder.SANITIZER,
                 decodes_in_another_row),
    EngineMutant("idle-lanes-compute", "vLLM#39064", "an idle lane writes into the row that it names", Finder.ALONE,
                 idle_lanes_compute),
)  # fmt: skip
PAGED_MUTANTS = (
    EngineMutant("page-given-back-too-early", "vLLM#52360", "a page is free while its sequence reads it", Finder.OWNER,
                 given_back_too_early),
    EngineMutant("two-lanes-with-one-page", "MinivLLM#98", "the page tables of two lanes name one page", Finder.KERNEL,
                 one_page_for_two_lanes),
    EngineMutant("table-of-an-earlier-sequence", "vllm-rbln#676",
                 "a row has the page table of the sequence that was preempted", Finder.KERNEL,
                 table_of_an_earlier_sequence),
    EngineMutant("preempted-keeps-its-pages", "vLLM#46283", "a preempted sequence gives back its row alone",
                 Finder.OWNER, preempted_keeps_its_pages),
    EngineMutant("grows-without-a-page", "sparkinfer#185", "a sequence goes on behind its last page", Finder.OWNER,
                 grows_without_a_page),
    EngineMutant("resumes-with-a-stale-count", "LMCache#2158",
                 "a preempted sequence goes on at its old position without state", Finder.ALONE,
                 resumes_with_a_stale_count),
    EngineMutant("resumes-without-its-tokens", "vllm-ascend#11334", "a preempted sequence reads its prompt alone",
                 Finder.ALONE, resumes_without_its_tokens),
)  # fmt: skip
