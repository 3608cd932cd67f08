"""What runs steps: the parameters, the compiled programs, and the pools that runs borrow."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import jax
import numpy as np

from hybridlm.cpu_tuning import Tuned
from hybridlm.devices.placement import ONE_DEVICE, Placement, numbers_on_a_device
from hybridlm.drafting.acceptance import Trust
from hybridlm.drafting.drafters import DRAFT_TOKENS, AsLoaded, HeadDrafter, Speculate, drafters
from hybridlm.drafting.step_times import StepTimes
from hybridlm.engine.speculation import Speculation
from hybridlm.multiprocess.crew import Crew
from hybridlm.prefix_cache.budget import CacheBudget
from hybridlm.prefix_cache.cache import PrefixCache
from hybridlm.prefix_cache.moves import RowMoves
from hybridlm.programs.calls import Calls
from hybridlm.programs.examples import example_arguments
from hybridlm.programs.programs import Programs
from hybridlm.programs.sanitized import Sanitized, Sanitizer
from hybridlm.programs.shapes import AnyShape, CopyShape, Shape, lane_rung
from hybridlm.rows.arrays import RowArrays
from hybridlm.rows.parts import PartShape
from hybridlm.rows.pool import RowPool
from hybridlm.rows.snapshot import StateKind, layout_of
from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.operands import Batch
from hybridlm.steps.structure import Rows
from ir_passes import CompiledStep, PlannedStep, Slot
from models import KV_BLOCK, Decoder, MtpDecoder

STAGING = 4
"""Most rows of the pool in which prompts and texts are consumed, a chunk of each at a time.
Four chunks are enough rows for the matrix products to be as fast as they get, and few enough that the sequences that
decode do not wait long.
"""

StepHook = Callable[[Rows, list[Any]], Rows]
"""(rows, what owns each of them) -> rows; for tests that inject faults."""


class Engine:
    """Runs the steps of one model.

    Args:
        model: what one device has of the model, for the shapes of its state.
        params, programs: its parameters, flat, and its compiled steps.
        lanes, context: most sequences that decode at the same time, and most tokens of one.
        chunk: tokens of a prompt consumed by one step.
        cache_dtype: dtype of convolution and key/value state.
        fingerprint, dtype: of the checkpoint, and of the matrices.
        sanitizer: follows whose state each row holds; None runs the compiled steps as they are.
        staging: most prompts that are consumed at the same time, if there are so many lanes.
        speculate, draft_tokens: who drafts, where a call does not say, and most drafts of a lane in a step.
        prefix_cache: bytes for the states of prompts that were read; None keeps none.
        placement: the devices; the parameters lie on them, and the programs are compiled for them.
        crew: the processes that have these devices; None where this one has them all.

    Raises:
        ValueError: `prefix_cache` is less than one state.

    Attributes:
        params: what every step is given: the parameters, or what tuning made of them.
        tuned: what tuning has chosen; None without.
        staging: rows in which prompts are consumed.
        row_arrays: what rows consist of.
        calls: calls the compiled steps, and reads what they return.
        stats: counters of steps and tokens.
        prefix_cache: states of prompts that were read; None without.
        checked: check after every step that every row is free or has one holder: in tests, and with a sanitizer.
        after_step: test hook, called after every step with the rows and their owners.
    """

    checked = False

    def __init__(
        self,
        model: Decoder,
        params: tuple[jax.Array, ...],
        programs: Programs,
        lanes: int,
        context: int,
        chunk: int,
        cache_dtype: Any,
        fingerprint: str,
        dtype: str,
        sanitizer: Sanitizer | None = None,
        staging: int = STAGING,
        speculate: Speculate = None,
        draft_tokens: int = DRAFT_TOKENS,
        prefix_cache: CacheBudget | None = None,
        placement: Placement = ONE_DEVICE,
        crew: Crew | None = None,
    ):
        self.lanes, self.context, self.chunk = lanes, context, chunk
        self.placement, self.calls = placement, Calls(programs, crew, placement.share_threads)
        self.staging = placement.staging(lanes, staging)
        self.params, self.programs, self.sanitizer = params, programs, sanitizer
        self._loaded = params
        self.tuned: Tuned | None = None
        self.speculate: Speculate = speculate
        self.draft_tokens, self._times = draft_tokens, StepTimes()
        self._trust, self._trust_in_head = Trust(), Trust(0.9)
        self.vocab_size = Vocabulary.of(model.config).size
        self.stats = {
            "steps": 0, "row_copies": 0, "prompt_tokens": 0, "prefix_tokens_saved": 0, "generated_tokens": 0,
            "draws": 0, "scored_tokens": 0, "verify_steps": 0, "drafted_tokens": 0, "accepted_tokens": 0,
            "speculation_pauses": 0,
        }  # fmt: skip
        self.checked = self.checked or sanitizer is not None
        self.after_step: StepHook | None = None
        # The sanitizer tells the rows of a pool from its other axes by their number.
        self._fewest = placement.data if sanitizer is None else 2
        self.row_arrays = RowArrays(model, cache_dtype, placement)
        self._kept: dict[str, RowPool] = {}
        self._model, self._dtype, self._head = fingerprint, dtype, isinstance(model, MtpDecoder)
        self.prefix_cache = None if prefix_cache is None else PrefixCache(self.moves, prefix_cache, chunk)

    def speculation(self, speculate: Speculate | AsLoaded) -> Speculation | None:
        """What a run drafts.

        Raises:
            TypeError, ValueError: `speculate` names no drafter and is none.
        """
        make = drafters(self.speculate if speculate == "as loaded" else speculate, self._head)
        if make is None:
            return None
        trust = self._trust_in_head if make is HeadDrafter else self._trust
        return Speculation(make, self.draft_tokens, self._times, trust, self.vocab_size)

    def set_tuned(self, tuned: Tuned) -> None:
        """Give the steps that are compiled from now on tuned parameters."""
        self.tuned, self.params, self.programs.int8_head_lanes = tuned, tuned.params, tuned.int8_head_lanes

    @property
    def parameters_on_a_device(self) -> tuple[int, int]:
        """Numbers that each device holds of the parameters, and their bytes."""
        held = [(numbers_on_a_device(param), param.dtype.itemsize) for param in self._loaded]
        return sum(size for size, _ in held), sum(size * width for size, width in held)

    @property
    def row_bytes_on_a_device(self) -> int:
        """Bytes of one row, on each device that has a part of it."""
        rows = jax.tree.leaves(self._abstract(self.placement.data))
        return sum(numbers_on_a_device(one) * one.dtype.itemsize for one in rows)

    @property
    def guesses(self) -> int:
        """Tokens that the model's own head guesses in a step, where a call does not say who drafts."""
        return self.draft_tokens if self.speculate == "mtp" else 0

    def new_rows(self, count: int) -> Rows:
        """So many rows of zero state."""
        return self.row_arrays.zeros(count, self.context)

    def _abstract(self, count: int) -> Rows:
        """So many rows, by their types alone."""
        return self.row_arrays.abstract(count, self.context)

    def new_pool(self, count: int) -> RowPool:
        """A pool of so many rows of zero state."""
        return self.calls.new_pool(count, self.new_rows)

    def new_row(self) -> RowPool:
        """A pool for the rows of one sequence, zero state."""
        return self.new_pool(self._fewest)

    @cached_property
    def moves(self) -> RowMoves:
        """What keeps states and puts them back."""
        # Nothing that an engine has refers to it, so that its arrays go when it does.
        rows = partial(self.row_arrays.abstract, context=self.context)
        return RowMoves(self.calls, self.sanitizer, self.kind, rows, self.placement, self.stats, self._head)

    @cached_property
    def kind(self) -> StateKind:
        """What a state must be to be continued here."""
        contexts = (self.context, self.context + 2 * KV_BLOCK)
        rows, longer = (self.row_arrays.abstract(1, context) for context in contexts)
        return StateKind(self._model, self._dtype, self.context, layout_of(rows, longer, self.placement))

    def rung(self, count: int, most: int) -> int:
        """Rows of the pool for so many sequences: the next power of two on every device, at most `most` on all."""
        devices = self.placement.data
        return max(devices * lane_rung(-(-count // devices), most // devices), self._fewest)

    def rungs(self, most: int) -> list[int]:
        """The sizes that a pool of at most so many rows has."""
        return sorted({self.rung(count, most) for count in range(1, most + 1)})

    def borrow(self, use: Literal["staging", "decode"], size: int) -> RowPool:
        """A pool of so many rows, none of them held: the one that an earlier run gave back, or a new one.

        What rows contain has no meaning: a sequence that begins starts from zero state inside the step.
        """
        kept = self._kept.pop(use, None)
        if kept is not None and kept.size == size and kept.whole:
            kept.vacate()
            return kept
        del kept  # its memory goes before the new pool comes
        return self.new_pool(size)

    def give_back(self, use: Literal["staging", "decode"], pool: RowPool) -> None:
        """Keep a pool for the next run, unless a step was cut short while it had the rows."""
        if pool.whole:
            self._kept[use] = pool

    def give_up(self, use: Literal["staging", "decode"]) -> None:
        """Free the pool that an earlier run gave back, if there is one."""
        self._kept.pop(use, None)

    def run(
        self,
        shape: Shape,
        pool: RowPool,
        batch: Batch,
        *operands: Any,
        owners: Sequence[Any],
        counts: np.ndarray | None,
    ) -> Any:
        """Dispatch a step on the rows of a pool; returns its outputs, which may not have been computed yet.

        Args:
            shape: which program.
            pool: its rows are consumed and replaced.
            batch, operands: as the step takes them; host arrays must not be written to afterwards.
            owners: what owns each row, for the sanitizer and the test hook.
            counts: tokens that each row consumes, int32 [N], on the host; None where the step decides, which says so in
                the first of its outputs, and the pool is told (`RowPool.advance`) when that has been read.

        Raises:
            IsolationError, AuditError, HloError: the step is refused (see `compile_step`); nothing has run.
        """
        self.calls.tell_run(shape, pool, (*batch, *operands))
        placed = self.placement.put((*batch, *operands))
        if self.sanitizer is None:
            outputs, rows = self.calls(shape, self.example_arguments, self.params, pool.take(), *placed)
            outputs = self.calls.whole(outputs)
        else:
            sanitized, given = self._sanitized(self.sanitizer, shape), tuple(placed[len(batch) :])
            outputs, rows = self.sanitizer.run(sanitized, pool, self.params, batch, given, owners, counts)
        pool.put(rows if self.after_step is None else self.after_step(rows, list(owners)))
        pool.advance(counts)
        self.stats["steps"] += 1
        return outputs

    def copy(self, source: RowPool, read: Slot, target: RowPool, write: Slot) -> None:
        """Dispatch the copy of one row, in all its arrays, to another pool."""
        self.copy_row(source, source.owner.bind([read], 1), target, target.owner.bind([write], 1))
        target.moved(write, source.consumed(read))
        self.stats["row_copies"] += 1

    def copy_row(self, source: RowPool, read: np.ndarray, target: RowPool, write: np.ndarray) -> None:
        """The same of rows by their numbers, int32 [1] each."""
        shape = CopyShape(source.size, target.size)
        self.calls.tell_copy(source, target, (read, write))
        maps = self.placement.put_whole((read, write))
        if self.sanitizer is None:
            (copied,) = self.calls(shape, self.example_arguments, target.take(), source.look(), *maps)
        else:
            copied = self.sanitizer.copy(self._sanitized(self.sanitizer, shape), target, source, maps)
        target.put(copied)

    def program(self, shape: AnyShape) -> CompiledStep:
        """The program of a shape, compiled on first use.

        Raises:
            IsolationError, AuditError, HloError: the step is refused (see `compile_step`).
        """
        return self.programs.in_full(shape, self.example_arguments)

    def planned(self, shape: AnyShape) -> PlannedStep:
        """The proof and the scratch of a shape's step, without compiling it; parameters may be abstract.

        Raises:
            IsolationError: the step is refused.
        """
        return self.programs.planned(shape, self.example_arguments(shape))

    def forget(self, owner: Any) -> None:
        """A sequence or text has ended."""
        if self.sanitizer is not None:
            self.sanitizer.forget(owner)

    def _sanitized(self, sanitizer: Sanitizer, shape: AnyShape) -> Sanitized:
        return sanitizer.program(shape, *self.programs.step(shape), self.example_arguments)

    def example_arguments(self, shape: AnyShape) -> tuple[Any, ...]:
        """Arguments like those that a program is called with, the rows by their types alone."""
        if isinstance(shape, PartShape):
            return self.moves.example_arguments(shape)
        return example_arguments(shape, self.params, self._abstract, self.placement)
