"""Row numbers that are clamped, wrapped or taken modulo; rows of nobody that are somebody's."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder

from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.programs.shapes import CopyShape, Shape
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import RowPool
from ir_passes.host.slot_owner import Slot

Maps = tuple[np.ndarray, np.ndarray]


def copies(patch: pytest.MonkeyPatch, change: Callable[[np.ndarray, np.ndarray, CopyShape], Maps]) -> None:
    """Copies of rows with other row numbers, (read, write) each of one row."""

    def copy(self: Engine, source: RowPool, read: Slot, target: RowPool, write: Slot) -> None:
        shape = CopyShape(source.size, target.size)
        maps = change(source.owner.bind([read], 1), target.owner.bind([write], 1), shape)
        (copied,) = self.program(shape)(target.take(), source.look(), *jax.device_put(maps))
        target.put(copied)

    patch.setattr(Engine, "copy", copy)


def clamped(patch: pytest.MonkeyPatch) -> None:
    copies(patch, lambda read, write, shape: (read, np.clip(write + shape.target, 0, shape.target - 1)))


def negative(patch: pytest.MonkeyPatch) -> None:
    copies(patch, lambda read, write, shape: (read, write - shape.target))


def modulo(patch: pytest.MonkeyPatch) -> None:
    copies(patch, lambda read, write, shape: (read % 2, write))


def row_0_is_padding(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler._by_lane

    def by_lane(self: Scheduler, pool: RowPool, sequences: list[ActiveSequence]) -> list[ActiveSequence | None]:
        return [None, *right(self, pool, sequences)[1:]] if pool.size > 1 else right(self, pool, sequences)

    patch.setattr(Scheduler, "_by_lane", by_lane)


def parked_rows_are_free(patch: pytest.MonkeyPatch) -> None:
    """Prompts are consumed among the rows of the sequences that wait to decode."""
    right = Engine.borrow
    made: list[RowPool] = []

    def borrow(self: Engine, use: Any, size: int) -> RowPool:
        made.append(made[-1] if use == "decode" else right(self, use, size))
        return made[-1]

    patch.setattr(Engine, "borrow", borrow)


def first_use_runs_twice(patch: pytest.MonkeyPatch) -> None:
    """A new program is tried out on the rows of the sequences."""
    tried: set[Shape] = set()
    right = Engine.run

    def run(self: Engine, shape: Shape, pool: RowPool, inputs: Any, **about: Any) -> Any:
        if shape not in tried:
            tried.add(shape)
            right(self, shape, pool, inputs, **about)
        return right(self, shape, pool, inputs, **about)

    patch.setattr(Engine, "run", run)


MUTANTS = (
    EngineMutant(
        "copy-to-the-last-row", "tpu-inference#2752, SGLang#36885", "a row number past the end becomes the last row",
        Finder.ALONE, clamped,
    ),
    EngineMutant(
        "copy-to-row-minus-one", "flashinfer#5042", "a negative row number: nothing is written", Finder.ALONE, negative
    ),
    EngineMutant("copy-from-row-modulo", "vllm-gaudi#1431", "the row is taken modulo 2", Finder.ALONE, modulo),
    EngineMutant(
        "row-0-is-padding", "vLLM#39064", "who lives in row 0 is taken for padding", Finder.ALONE, row_0_is_padding
    ),
    EngineMutant(
        "parked-rows-are-free", "TRT-LLM#13151", "prompts are consumed in rows of sequences that wait to decode",
        Finder.OWNER, parked_rows_are_free,
    ),
    EngineMutant(
        "first-use-runs-twice", "SGLang#17404, triton#6547", "a program is tried out on live rows before its first use",
        Finder.SANITIZER, first_use_runs_twice,
    ),
)  # fmt: skip
