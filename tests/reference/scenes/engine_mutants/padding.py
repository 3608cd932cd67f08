"""Row numbers that are clamped, wrapped or taken modulo; rows of nobody that are somebody's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder, replaced
from engine_mutants.slots import mapped

from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import LaneMap, RowPool


def first_slot(patch: pytest.MonkeyPatch, change: Callable[[int, int], int]) -> None:
    """Change the first lane's row in a step: `change(row, rows of the pool) -> row`.

    If another lane has that row, the two exchange theirs.
    """

    def changed(slots: np.ndarray, pool: RowPool) -> np.ndarray:
        row = change(int(slots[0]), pool.size)
        slots[slots == row] = slots[0]
        slots[0] = row
        return slots

    mapped(patch, changed)


def clamped(patch: pytest.MonkeyPatch) -> None:
    first_slot(patch, lambda row, rows: min(row + rows, rows - 1))


def negative(patch: pytest.MonkeyPatch) -> None:
    first_slot(patch, lambda row, rows: (row - 1) % rows)


def modulo(patch: pytest.MonkeyPatch) -> None:
    first_slot(patch, lambda row, rows: row % 2)


@replaced(Scheduler, "_by_lane")
def row_0_is_padding(right: Any, self: Scheduler, *about: Any) -> tuple[list[ActiveSequence | None], LaneMap]:
    lanes, lane_map = right(self, *about)
    if len(lanes) > 1:
        lanes = [lane if row else None for lane, row in zip(lanes, lane_map.rows, strict=True)]
    return lanes, lane_map


@replaced(Scheduler, "_admit")
def parked_rows_are_free(right: Any, self: Scheduler) -> None:
    """A prompt is consumed in the row of a sequence that decodes."""
    previous = list(self.prefilling)
    right(self)
    for sequence in self.prefilling:
        if sequence not in previous and self.decoding and self._pool is not None and sequence.slot is not None:
            self._pool.owner.release(sequence.slot)
            sequence.slot = self.decoding[0].slot


def first_use_runs_twice(patch: pytest.MonkeyPatch) -> None:
    """A new program is tried out on the rows of the sequences."""
    tried: set[Shape] = set()
    right = Engine.run

    def run(self: Engine, shape: Shape, *arguments: Any, **about: Any) -> Any:
        if shape not in tried:
            tried.add(shape)
            right(self, shape, *arguments, **about)
        return right(self, shape, *arguments, **about)

    patch.setattr(Engine, "run", run)


MUTANTS = (
    EngineMutant("slot-becomes-the-last-row", "tpu-inference#2752, SGLang#36885",
                 "a row number past the end becomes the last row", Finder.ALONE, clamped),
    EngineMutant("slot-below-0-wraps", "flashinfer#5042", "a negative row number counts from the end", Finder.ALONE,
                 negative),
    EngineMutant("slot-modulo", "vllm-gaudi#1431", "the row is taken modulo 2", Finder.ALONE, modulo),
    EngineMutant("row-0-is-padding", "vLLM#39064", "who lives in row 0 is taken for padding", Finder.ALONE,
                 row_0_is_padding),
    EngineMutant("parked-rows-are-free", "TRT-LLM#13151", "prompts are consumed in rows of sequences that decode",
                 Finder.OWNER, parked_rows_are_free),
    EngineMutant("first-use-runs-twice", "SGLang#17404, triton#6547",
                 "a program is tried out on live rows before its first use", Finder.SANITIZER, first_use_runs_twice),
)  # fmt: skip
