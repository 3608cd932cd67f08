"""The only interface for steps on a pool, and for moves of states.

`many_processes` runs steps in several processes, `sanitized` with shadow labels.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.multiprocess.decisions import Broadcast
from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.programs.jax_settings import under_settings
from hybridlm.programs.programs import Programs
from hybridlm.programs.shapes import AnyShape, EditShape, Shape
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.parts import PartShape
from hybridlm.rows.pool import PoolPart, RowPool
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Rows
from ir_passes import CompiledStep
from ir_passes.compile.stored import StoredStep
from ir_passes.host.row_ledger import Label
from ir_passes.jaxpr import jax_private


class Tallies(Counter[str]):
    """Counts since loading; each is also counted for the thread that adds it.

    Attributes:
        by_thread: counts by the identifier of a thread; threads may read the counts of others.
    """

    def __init__(self, names: Iterable[str] = ()):
        super().__init__(dict.fromkeys(names, 0))
        self.by_thread: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def add(self, name: str, count: int = 1) -> None:
        self[name] += count
        self.by_thread[threading.get_ident()][name] += count


MovedArrays = PoolPart | CachedBuffers
"""`look` for reads, `take` and `put` for writes."""
Examples = Callable[[Any], tuple[Any, ...]]
"""Shape -> example arguments for compilation on first use."""


class PoolStep(NamedTuple):
    """A step that consumes the rows of a pool; fields as for `Engine.run`."""

    shape: Shape
    params: tuple[jax.Array, ...]
    pool: RowPool
    inputs: StepInputs
    owners: Sequence[Any]
    counts: np.ndarray | None


class Move(NamedTuple):
    """A copy of a part of a row.

    Attributes:
        maps: other operands, int32 [1] each: read row, written row, ...
        mark: another label under which a cached state is continued.
    """

    shape: PartShape
    target: MovedArrays
    source: MovedArrays
    maps: Sequence[np.ndarray]
    mark: Label | None = None


class Runner(ABC):
    """Runs one model's compiled steps.

    A refused step raises IsolationError, AuditError or HloError.

    Attributes:
        min_rows: least rows of a pool or cached buffers, and lanes of a step.
        checks_rows: the engine checks the holders of rows after every step.
        certified: as of `Programs`; False for sanitized steps.
        decisions: commands and decisions shared with other processes; None in one process.
    """

    decisions: Broadcast | None = None
    min_rows = 1
    checks_rows = False
    compiles_ahead = False

    def __init__(self, programs: Programs, placement: Placement):
        self.programs, self.placement = programs, placement
        self.settings, self.certified = programs.settings, programs.certified

    @abstractmethod
    def run(self, step: PoolStep, examples: Examples) -> tuple[Any, Rows]:
        """Dispatch a step; return outputs and new rows."""

    @abstractmethod
    def move(self, step: Move, examples: Examples) -> None:
        """Dispatch a step that copies a part of a row."""

    def edit(self, shape: EditShape, examples: Examples, pool: RowPool, operands: tuple[Any, ...]) -> None:
        """Dispatch a change of rows; by default raise ValueError (see `require_edits`)."""
        self.require_edits(str(shape))

    def require_edits(self, subject: str) -> None:
        self.placement.require_one_process(subject)

    def read(self, outputs: Any) -> Any:
        return jax.device_get(outputs)

    def compiled(self, shape: AnyShape, examples: Examples) -> CompiledStep | StoredStep:
        return self.programs.compiled(shape, examples)

    def start_timing(self, shape: AnyShape, examples: Examples) -> bool:
        """Compile a step; return whether its measured time excludes other work."""
        self.compiled(shape, examples)
        return True

    def run_worker(self, repeat: Callable[[ProcessGroup], None]) -> bool:
        """Call `repeat` except in process 0; return whether it was called."""
        return False

    def mark(self, owner: Any) -> Label | None:
        """Return the label of a sequence's rows for a snapshot."""
        return None

    def adopt(self, owner: Any, mark: Label | None) -> None:
        """Record that a sequence's rows are a copy of a labelled snapshot."""
        return None

    def stamp(self, buffers: Sequence[CachedBuffers], position: int) -> Label | None:
        """Label cached buffers of a new owner, unwritten by steps."""
        return None

    def forget(self, owner: Any) -> None:
        return None


MAX_IN_FLIGHT = 16
"""Calls before a wait; XLA:CPU lets 32 programs wait on a device."""


class InFlight:
    """Bounds the number of calls in flight, to avoid a deadlock of XLA:CPU.

    XLA:CPU has one thread per device of a process. A collective and a call for a device with 32 waiting programs hold
    threads; without a free one XLA ends the process after 40 seconds.

    Args:
        shared: programs run on several such devices.
    """

    def __init__(self, shared: bool):
        self._shared = shared
        self._results: list[Any] = []

    def add(self, results: Any) -> None:
        """Add a call's arrays; later calls may donate them."""
        if not self._shared:
            return
        self._results.append(results)
        if len(self._results) == MAX_IN_FLIGHT:
            # Arrays donated to a later call are ready before its awaited results.
            results, self._results = self._results, []
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(results) if not leaf.is_deleted()])


class OneProcess(Runner):
    compiles_ahead = True

    def __init__(self, programs: Programs, placement: Placement):
        super().__init__(programs, placement)
        self._in_flight = InFlight(placement.share_threads)

    @under_settings
    def run(self, step: PoolStep, examples: Examples) -> tuple[Any, Rows]:
        """Dispatch the step; donate the pool's arrays."""
        inputs = step.inputs if self.placement.mesh is None else self.placement.put(step.inputs)
        return self._call(self.programs.compiled(step.shape, examples), step.params, step.pool.take(), inputs)

    @under_settings
    def move(self, step: Move, examples: Examples) -> None:
        maps, program = self.placement.put_whole(tuple(step.maps)), self.programs.compiled(step.shape, examples)
        step.target.put(*self._call(program, step.target.take(), step.source.look(), *maps))

    @under_settings
    def edit(self, shape: EditShape, examples: Examples, pool: RowPool, operands: tuple[Any, ...]) -> None:
        operands = self.placement.put(operands)
        pool.put(*self._call(self.programs.compiled(shape, examples), pool.take(), *operands))

    def _call(self, program: Any, *args: Any) -> Any:
        with jax_private.explicit_device_put():
            results = program(*args)
        self._in_flight.add(results)
        return results
