"""The engine: parameters, compiled programs, and the pool of rows.

More than 300 lines: one class with parts that share its parameters and its pool.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from hybridlm.checkpoint import Fingerprint
from hybridlm.devices.placement import bytes_on_a_device, numbers_on_a_device
from hybridlm.drafting.acceptance import AcceptancePrior
from hybridlm.drafting.drafters import DRAFTERS, DecidedDrafter, MtpDrafter, Speculate, drafters
from hybridlm.drafting.step_times import StepTimes
from hybridlm.engine.arguments import check_commit
from hybridlm.engine.cache_size import pool_pages
from hybridlm.engine.config import ResolvedConfig
from hybridlm.engine.speculation import Speculation
from hybridlm.files.finished import FinishedTexts
from hybridlm.prefix_cache.cache import PrefixCache
from hybridlm.prefix_cache.moves import RowMoves
from hybridlm.programs.examples import example_arguments
from hybridlm.programs.jax_settings import under_settings
from hybridlm.programs.programs import Programs
from hybridlm.programs.runner import PoolStep, Runner, Tallies
from hybridlm.programs.shapes import AnyShape, Shape, StepName, lane_bucket
from hybridlm.rows.arrays import RowArrays
from hybridlm.rows.parts import PartShape
from hybridlm.rows.pool import RowPool
from hybridlm.rows.snapshot import StateKind, layout_of
from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Rows
from ir_passes import CompiledStep
from ir_passes.compile.planned_step import PlannedStep
from ir_passes.host.page_owner import Page
from ir_passes.host.slot_owner import Slot
from models import KV_BLOCK, Decoder, MtpDecoder

MAX_PREFILL_LANES = 4
"""Lanes of a prefill step: enough for full matmul throughput."""

TURN_LOCK = threading.Condition()
"""Held while queues or a pool change."""


def holds_turn() -> bool:
    """Whether this thread holds `TURN_LOCK`."""
    try:
        TURN_LOCK.notify(0)
    except RuntimeError:
        return False
    return True


T = TypeVar("T")
StepKind = Literal["decode", "prompt", "score"]
"""Kinds of steps in `Engine.full_shape`."""
StepHook = Callable[[Rows, list[Any]], Rows]
"""(rows, owner of each row) -> rows; for tests that inject faults."""


class Engine:
    """Runs the steps of one model.

    Args:
        model: the model as one device holds it.
        params: flat.
        fingerprint: of the checkpoint; "" without weights.
        runner: None runs the compiled steps in this process alone.

    Raises:
        ValueError: `prefix_cache` is less than one state.

    Attributes:
        decisions: commands and decisions shared with other processes; None in one process.
        blocks: pages of a context; 0 without KV caches.
        page_limit: most pages of a pool on each device.
        cache_limit: positions of a device's KV cache; None with room for a context.
        longest: most tokens of a text or prompt, by the context and a device's KV cache.
        mtp_drafts, head_drafts: MTP drafts of a step, and most positions of them after a sequence's end.
        given_up: release rows of dropped queues; called by `pool`: a queue may be collected while the pool changes.
        interrupted: a turn ended by Ctrl-C, perhaps between a row and its owner; `pool` reclaims such rows.
        checked: check the holders of all rows after every step.
        after_step: test hook, called with rows and owners.
    """

    checked, interrupted = False, False

    def __init__(
        self,
        model: Decoder,
        params: tuple[jax.Array, ...],
        programs: Programs,
        settings: ResolvedConfig,
        fingerprint: Fingerprint | str = "",
        runner: Runner | None = None,
        prefill_lanes: int = MAX_PREFILL_LANES,
    ):
        self.options = settings
        self.lanes, self.context, self.chunk, self.dtype = (
            settings.lanes, settings.context, settings.chunk, settings.dtype,
        )  # fmt: skip
        self.widths = settings.widths or (self.chunk,)
        placement = self.placement = programs.placement
        self.runner = Runner(programs, placement) if runner is None else runner
        self.programs, self.decisions = self.runner.programs, self.runner.decisions
        self.settings = self.programs.settings
        self.prefill_lanes = placement.prefill_lanes(self.lanes, prefill_lanes)
        self.params = params
        self._times, self._prior, self._mtp_prior = StepTimes(), AcceptancePrior(), AcceptancePrior(0.9)
        self.config = model.config if programs.config is None else programs.config
        self.residual_size = model.config.residual_size
        self.vocab_size = Vocabulary.of(model.config).size
        self.stats = Tallies([
            "steps", "prompt_tokens", "prefix_tokens_saved", "generated_tokens", "sampled_lanes", "scored_tokens",
            "verify_steps", "drafted_tokens", "accepted_tokens", "speculation_pauses", "step_tokens", "step_places",
            "decode_tokens", "decode_places", "preemptions",
        ])  # fmt: skip
        self.checked = self.checked or self.runner.checks_rows
        self.after_step: StepHook | None = None
        self._of_thread = threading.local()
        self._min_rows = max(placement.data, self.runner.min_rows)
        self.rows = max(self.lanes, self._min_rows)
        self.prefill_sizes = self.buckets(self.prefill_lanes)
        cache_dtype = settings.cache_dtype(placement.platform)
        self.row_arrays = RowArrays(model, cache_dtype, placement)
        self.blocks = self.row_arrays.blocks(self.context)
        page_bytes = model.state_size(cache_dtype).token * KV_BLOCK
        self.page_limit = settings.page_limit(page_bytes, placement.data)
        limit = self.page_limit
        self.cache_limit = limit * KV_BLOCK if limit is not None and limit < self.blocks else None
        self.longest = self.context if self.cache_limit is None else min(self.context, self.cache_limit)
        self._pool: RowPool | None = None
        self.queues: weakref.WeakSet[Any] = weakref.WeakSet()
        self.given_up: deque[Callable[[Engine], None]] = deque()
        self._model, self._head = fingerprint, isinstance(model, MtpDecoder)
        self.mtp_drafts = settings.draft_tokens if settings.needs_head else 0
        self.head_drafts = settings.draft_tokens if self._head else 0
        self._cache_budget = budget = settings.prefix_cache
        self.prefix_cache = None if budget is None else PrefixCache(self.moves, budget, self.chunk)

    @property
    def finished(self) -> FinishedTexts | None:
        """Results of finished texts of this thread's file."""
        return getattr(self._of_thread, "finished", None)

    @finished.setter
    def finished(self, finished: FinishedTexts | None) -> None:
        self._of_thread.finished = finished

    def command(self, kind: str, **arguments: Any) -> AbstractContextManager[None]:
        """Run a call of the user, with all its data, in all processes."""
        return nullcontext() if self.decisions is None else self.decisions.command(kind, **arguments)

    def decide(self, make: Callable[[], T]) -> T:
        """Return process 0's result of `make`, within a command."""
        return make() if self.decisions is None else self.decisions.decide(make)

    def speculation(self, speculate: Speculate) -> Speculation | None:
        """Return the drafting decisions of a run; None if it does not draft.

        Raises:
            TypeError, ValueError: `speculate` is no drafter, or a layer cannot verify drafts.
        """
        make = drafters(speculate, self._head)
        if make is None:
            return None
        check_commit(self.row_arrays.model)
        if make not in DRAFTERS.values():
            make = partial(DecidedDrafter, make(), self.vocab_size, self.decide)
        prior = self._mtp_prior if make is MtpDrafter else self._prior
        return Speculation(make, self.options.draft_tokens, self._times, prior, self.vocab_size)

    def release_parameters(self) -> None:
        """Drop the parameters; nothing runs until `replace_parameters`.

        Raises:
            RuntimeError: requests are waiting or running.
        """
        count = sum(queue.requests for queue in self.queues)
        if count:
            raise RuntimeError(
                f"{count} requests of open sessions are not finished, expected none while weights are replaced; finish "
                "them, or cancel them or close their sessions"
            )
        self.params = ()

    def require_parameters(self) -> None:
        if not self.params:
            raise RuntimeError(
                "the model has no weights: another thread is replacing them, or that failed; then call LM.update again "
                "with all of them, or load the model again"
            )

    def replace_parameters(self, params: tuple[jax.Array, ...], fingerprint: Fingerprint) -> None:
        """Use other parameters of the same shapes and dtypes, and refuse earlier states."""
        self.params = params
        self._model = fingerprint
        for name in ("kind", "moves"):
            self.__dict__.pop(name, None)
        self.clear_prefix_cache()

    def clear_prefix_cache(self) -> None:
        """Drop all cached states, in all processes."""
        if self._cache_budget is not None:
            with self.command("clear prefix cache"):
                if self.prefix_cache is not None:
                    self.prefix_cache.clear()
                self.prefix_cache = PrefixCache(self.moves, self._cache_budget, self.chunk)

    @property
    def parameters_on_a_device(self) -> tuple[int, int]:
        """Number of parameters on each device, and their bytes."""
        numbers = 0
        for param in self.params:
            # Codes of a packed weight are sharded as its numbers are.
            first = jax.tree.leaves(param)[0]
            numbers += math.prod(param.shape) * numbers_on_a_device(first) // math.prod(first.shape)
        return numbers, bytes_on_a_device(self.params)

    @property
    def row_bytes_on_a_device(self) -> int:
        """Bytes of one row on each device."""
        devices = self.placement.data
        return bytes_on_a_device(self.row_arrays.abstract(devices, devices * self.blocks))

    def pages(self, rows: int) -> int:
        devices = self.placement.data
        return devices * pool_pages(-(-rows // devices), self.blocks, self.page_limit)

    @property
    def cache_positions(self) -> int:
        """Positions of a run's KV cache, on all devices."""
        return max(0, self.pages(self.rows) - self.placement.data) * KV_BLOCK

    @under_settings
    def new_rows(self, count: int) -> Rows:
        return self.row_arrays.zeros(count, self.pages(count))

    def new_pool(self, count: int) -> RowPool:
        return RowPool(self.new_rows(count), self.pages(count), self.blocks, self.placement.data)

    @cached_property
    def moves(self) -> RowMoves:
        # No part of an engine refers back to it, so that its arrays are freed with it.
        rows = self.row_arrays.abstract
        return RowMoves(self.runner, self.kind, rows, self.placement, self.stats, self._head)

    @cached_property
    def kind(self) -> StateKind:
        rows, arrays = self.row_arrays.abstract(1, 1), self.programs.structure.arrays
        return StateKind(self._model, self.dtype, self.context, layout_of(rows, arrays, self.context, self.placement))

    def bucket(self, count: int, limit: int) -> int:
        """Return the lanes of a step: one size of `lane_bucket` per device."""
        devices = self.placement.data
        return max(devices * lane_bucket(-(-count // devices), limit // devices), self._min_rows)

    def buckets(self, limit: int) -> list[int]:
        return sorted({self.bucket(count, limit) for count in range(1, limit + 1)})

    def shape(self, step: StepName, lanes: int, tokens: int, rows: int | None = None, **fields: Any) -> Shape:
        """Return the shape of a step; `rows` of another pool than the engine's."""
        rows = self.rows if rows is None else rows
        return Shape(step, lanes, tokens, rows, pages=self.pages(rows), blocks=self.blocks, **fields)

    def full_shape(self, step: StepKind) -> Shape:
        """Return the shape of the largest decode, prompt or score step."""
        if step == "decode":
            return self.shape("generate", self.lanes, 1)
        name, top = ("score", 0) if step == "score" else ("generate", None)
        return self.shape(name, self.prefill_lanes, self.chunk, top=top)

    def verify_shape(self, lanes: int) -> Shape:
        """Return the shape of a step that verifies the most drafts of each lane."""
        return self.shape("verify", lanes, self.options.draft_tokens + 1, mtp_drafts=self.mtp_drafts)

    @property
    def pool(self) -> RowPool:
        """The pool of all sequences and texts, allocated at first use and after a loss."""
        if not self.params:
            self.require_parameters()
        with TURN_LOCK:
            while self.given_up:
                self.given_up.popleft()(self)
            if self.interrupted and self._pool is not None:
                sequences = [sequence for queue in self.queues for sequence in queue.joined]
                self.interrupted = not self._pool.reclaim(sum(sequence.slot is not None for sequence in sequences))
            if self._pool is None or self._pool.arrays is None:
                for queue in self.queues:
                    queue.lose_rows()
                if self._pool is not None and self.prefix_cache is not None:
                    self.prefix_cache.lose_pages()
                self._pool = None  # frees its memory before the next allocation
                self._pool = self.new_pool(self.rows)
            return self._pool

    def make_room(self, positions: int, shared: Sequence[Page] = ()) -> list[int]:
        """Return the devices of `RowPool.devices_for`; without any, evict cached states."""
        pool, cache = self.pool, self.prefix_cache
        return pool.devices_for(positions, shared, None if cache is None else partial(cache.make_room, pool))

    def release(self, slot: Slot) -> None:
        """Give a row back; a pool without arrays is given up with all its rows.

        An empty pool hands out rows like a new one: no run depends on earlier runs.
        """
        if self._pool is not None and self._pool.arrays is not None:
            self._pool.release(slot)
            if not self._pool.owner.held:
                self._pool.vacate()

    def read(self, outputs: Any) -> Any:
        """Wait for outputs; a failure of the device loses the pool."""
        try:
            return self.runner.read(outputs)
        except jax.errors.JaxRuntimeError:
            with TURN_LOCK:
                if self._pool is not None:
                    self._pool.arrays = None
            raise

    def run(
        self,
        shape: Shape,
        pool: RowPool,
        rows: np.ndarray,
        inputs: StepInputs,
        owners: Sequence[Any],
        counts: np.ndarray | None,
    ) -> Any:
        """Dispatch a step on rows of a pool and return its pending outputs.

        Args:
            rows: `LaneMap.rows`, int32 [N]; `inputs` has its slots.
            inputs: host arrays, not written afterwards.
            owners: of each lane; None for an idle lane.
            counts: tokens that each lane consumes, int32 [N]; None if the step returns them as its first output, for
                `RowPool.settle`.

        Raises:
            IsolationError, AuditError, HloError: the step is refused; nothing has run.
        """
        lengths = np.asarray(inputs.batch.lengths) if counts is None else counts
        positions = inputs.batch.positions
        ends = np.where(lengths > 0, positions + lengths + shape.mtp_drafts, 0)
        # An MTP head writes the last position of the previous step again.
        pool.require_pages(rows, positions - 1 if self._head else positions, ends)
        step = PoolStep(shape, self.params, pool, inputs, owners, counts)
        outputs, arrays = self.runner.run(step, self.example_arguments)
        if self.after_step is not None:
            owner_of = dict(zip(rows.tolist(), owners, strict=True))
            arrays = self.after_step(arrays, [owner_of.get(row) for row in range(pool.size)])
        pool.arrays = arrays
        if counts is None:
            pool.unsettle(rows[[owner is not None for owner in owners]])
        else:
            pool.advance(rows, counts)
        self.stats.add("steps")
        if counts is not None:
            tokens, places = int(np.sum(counts)), shape.lanes * shape.tokens
            self.stats.add("step_tokens", tokens)
            self.stats.add("step_places", places)
            if shape.tokens == 1:
                self.stats.add("decode_tokens", tokens)
                self.stats.add("decode_places", places)
        return outputs

    def program(self, shape: AnyShape) -> CompiledStep:
        """Return the program of a shape, compiled on first use; raises as `compile_step`."""
        return self.programs.in_full(shape, self.example_arguments)

    def planned(self, shape: AnyShape) -> PlannedStep:
        """Return a step's proof and scratch plan; raises IsolationError."""
        return self.programs.planned(shape, self.example_arguments(shape))

    def example_arguments(self, shape: AnyShape) -> tuple[Any, ...]:
        """Return arguments of a program, with rows as ShapeDtypeStructs.

        Raises:
            ValueError: the shape has the pages of another pool.
        """
        if isinstance(shape, PartShape):
            return self.moves.example_arguments(shape)
        pages = self.pages(shape.rows), self.blocks
        if (shape.pages, shape.blocks if isinstance(shape, Shape) else self.blocks) != pages:
            raise ValueError(f"{shape} must have the pages and blocks of this engine, {pages}; make it by engine.shape")
        rows = self.row_arrays.abstract
        model = self.programs.structure, self.residual_size, self.vocab_size
        return example_arguments(shape, self.params, rows, self.placement, *model)
