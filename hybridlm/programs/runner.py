"""The only interface for steps on a pool, and for moves of states.

`many_processes` runs steps in several processes, `sanitized` with shadow labels.
"""

import threading
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


MAX_IN_FLIGHT = 16
"""Calls before a wait; XLA:CPU lets 32 programs wait on a device."""


class InFlight:
    """Bounds the number of calls in flight, to avoid a deadlock of XLA:CPU.

    XLA:CPU has one thread per device of a process. A collective and a call for a device with 32 waiting programs hold
    threads; without a free one XLA ends the process after 40 seconds.
    """

    def __init__(self) -> None:
        self._results: list[Any] = []

    def add(self, results: Any) -> None:
        """Add a call's arrays; later calls may donate them."""
        self._results.append(results)
        if len(self._results) == MAX_IN_FLIGHT:
            # Arrays donated to a later call are ready before its awaited results.
            results, self._results = self._results, []
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(results) if not leaf.is_deleted()])


class Runner:
    """Runs one model's compiled steps, in one process.

    `ManyProcesses` and `Sanitizer` run them otherwise. A refused step raises IsolationError, AuditError or HloError.

    Attributes:
        min_rows: least rows of a pool or cached buffers, and lanes of a step.
        checks_rows: the engine checks the holders of rows after every step.
        compiles_ahead: a step may be compiled in a thread while another one runs.
        certified: as of `Programs`; False for sanitized steps.
        decisions: commands and decisions shared with other processes; None in one process.
    """

    decisions: Broadcast | None = None
    min_rows = 1
    checks_rows = False
    compiles_ahead = True

    def __init__(self, programs: Programs, placement: Placement):
        self.programs, self.placement = programs, placement
        self.settings, self.certified = programs.settings, programs.certified
        self._explicit_device_put = jax_private.explicit_device_put()
        self._in_flight = InFlight() if placement.share_threads else None

    @under_settings
    def run(self, step: PoolStep, examples: Examples) -> tuple[Any, Rows]:
        """Dispatch a step that consumes the pool's arrays; return outputs and rows."""
        inputs = step.inputs if self.placement.mesh is None else self.placement.put(step.inputs)
        return self._call(self.programs.compiled(step.shape, examples), step.params, step.pool.take(), inputs)

    @under_settings
    def move(self, step: Move, examples: Examples) -> None:
        """Dispatch a step that copies a part of a row."""
        maps, program = self.placement.put_whole(tuple(step.maps)), self.programs.compiled(step.shape, examples)
        step.target.put(*self._call(program, step.target.take(), step.source.look(), *maps))

    @under_settings
    def edit(self, shape: EditShape, examples: Examples, pool: RowPool, operands: tuple[Any, ...]) -> None:
        """Dispatch a change of rows; raises as `require_edits`."""
        self.require_edits(str(shape))
        operands = self.placement.put(operands)
        (pool.arrays,) = self._call(self.programs.compiled(shape, examples), pool.take(), *operands)

    def _call(self, program: Any, *args: Any) -> Any:
        with self._explicit_device_put():
            results = program(*args)
        if self._in_flight is not None:
            self._in_flight.add(results)
        return results

    def require_edits(self, subject: str) -> None:
        """Raise ValueError unless rows can be changed between steps."""
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
