"""Rows of a step's lanes: other rows than the host means, rows of an earlier step, rows given back too early."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder

from hybridlm.engine import scheduler
from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import LaneMap, RowPool
from ir_passes.host.slot_owner import Slot


def mapped(patch: pytest.MonkeyPatch, change: Callable[[np.ndarray, RowPool], np.ndarray]) -> None:
    """Give the steps other rows: `change(slots, pool) -> slots`; the host keeps its own."""
    right = RowPool.arrange

    def arrange(self: RowPool, slots: Sequence[Slot], lanes: int) -> tuple[list[int], LaneMap]:
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


def given_back_before_the_last_step(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler._release_finished

    def release(self: Scheduler, dispatched: Any) -> None:
        for sequence, _ in dispatched.sequences:
            if sequence.slot is not None and self._pool is not None and sequence.remaining(self._engine.context) == 1:
                self._pool.owner.release(sequence.slot)
        right(self, dispatched)

    patch.setattr(Scheduler, "_release_finished", release)


def decodes_in_another_row(patch: pytest.MonkeyPatch) -> None:
    """A sequence with its whole prompt takes the row of one that decodes, which takes the sequence's."""
    right = Scheduler._start_decoding

    def start(self: Scheduler, sequence: ActiveSequence) -> None:
        if self.decoding:
            sequence.slot, self.decoding[0].slot = self.decoding[0].slot, sequence.slot
        right(self, sequence)

    patch.setattr(Scheduler, "_start_decoding", start)


def idle_lanes_compute(patch: pytest.MonkeyPatch) -> None:
    """Idle lanes read a token, in rows of sequences whose prompts are not finished: between all of their chunks."""
    patch.setattr(scheduler, "MAX_PREFILL_RUN", 1)
    right = Engine.run

    def run(self: Engine, shape: Any, pool: RowPool, rows: Any, inputs: Any, **about: Any) -> Any:
        if shape.tokens == 1:
            batch = inputs.batch._replace(lengths=np.ones(shape.lanes, np.int32))
            inputs = inputs._replace(batch=batch)
        return right(self, shape, pool, rows, inputs, **about)

    patch.setattr(Engine, "run", run)


MUTANTS = (
    EngineMutant(
        "slots-reversed", "tenstorrent#51", "one step has the slots of its lanes in another order",
        Finder.SANITIZER, reversed_once,
    ),
    EngineMutant(
        "slots-of-the-next-rows", "vLLM#53919", "a step counts rows from another base than the step before it",
        Finder.SANITIZER, next_row,
    ),
    EngineMutant(
        "two-lanes-in-one-row", "vLLM#37728", "two lanes of a step name one row",
        Finder.KERNEL, one_row_for_two,
    ),
    EngineMutant(
        "slots-of-the-step-before", "SGLang#39342", "slots on the device are used again for other sequences",
        Finder.ALONE, of_the_step_before,
    ),
    EngineMutant(
        "given-back-before-the-last-step", "TRT-LLM#13151", "a row is free while its sequence has a token to sample",
        Finder.OWNER, given_back_before_the_last_step,
    ),
    EngineMutant(
        "decodes-in-another-row", "SGLang#26351", "a finished prompt's state is not where the sequence decodes",
        Finder.SANITIZER, decodes_in_another_row,
    ),
    EngineMutant(
        "idle-lanes-compute", "vLLM#39064", "an idle lane writes into the row that it names",
        Finder.ALONE, idle_lanes_compute,
    ),
)  # fmt: skip
