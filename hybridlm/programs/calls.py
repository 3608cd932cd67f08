"""Calls of compiled steps, in this process alone or broadcast to a process group, with few calls in flight on CPUs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.multiprocess.records import Operation
from hybridlm.programs.operations import copy_operation, run_operation
from hybridlm.programs.programs import Programs
from hybridlm.programs.shapes import S, Shape
from hybridlm.rows.pool import RowPool
from hybridlm.steps.structure import Rows


class Calls:
    """Calls the program of a shape, compiled on first use. In a single process the broadcasts are no-ops.

    Args:
        programs: the compiled programs.
        process_group: the processes that run the model together; None for this one alone.
        share_threads: see `Placement.share_threads`.
    """

    def __init__(self, programs: Programs, process_group: ProcessGroup | None, share_threads: bool):
        self._programs, self.process_group, self._in_flight = programs, process_group, InFlight(share_threads)

    def __call__(self, shape: S, examples: Callable[[S], tuple[Any, ...]], *args: Any) -> Any:
        """Call a program; `examples` gives example arguments of a shape to compile it for.

        Raises IsolationError, AuditError, HloError if the step is refused; in a process group also as
        `ProcessGroup.call`.
        """
        if self.process_group is not None:  # it limits its own calls in flight
            return self.process_group.call(shape, lambda: self._programs.compiled(shape, examples), args)
        results = self._programs.compiled(shape, examples)(*args)
        self._in_flight.add(results)
        return results

    def new_pool(self, count: int, new_rows: Callable[[int], Rows]) -> RowPool:
        """Allocate a pool of `count` rows, in all processes."""
        if self.process_group is None:
            return RowPool(new_rows(count))
        number = self.process_group.new_number()
        self.process_group.broadcast(Operation("rows", (number, count)))
        pool = RowPool(new_rows(count))
        self.process_group.register(pool, number)
        return pool

    def broadcast_run(self, shape: Shape, pool: RowPool, operands: Sequence[Any]) -> None:
        """Broadcast the step that is called next, and its operands on the host."""
        if self.process_group is not None:
            self.process_group.broadcast(*run_operation(self.process_group.number(pool), pool.size, shape, operands))

    def broadcast_copy(self, source: RowPool, target: RowPool, maps: tuple[np.ndarray, np.ndarray]) -> None:
        """Broadcast the copy of a row that is called next; `maps`: rows that are read and written, int32 [1] each."""
        if self.process_group is not None:
            numbers = self.process_group.number(source), source.size, self.process_group.number(target), target.size
            self.process_group.broadcast(*copy_operation(numbers, maps))

    def replicate(self, outputs: Any) -> Any:
        """Replicate a step's outputs of all lanes, so that `read` can read them."""
        return outputs if self.process_group is None else self.process_group.replicate(outputs)

    def read(self, outputs: Any) -> Any:
        """Wait for outputs of steps and return them on the host. In a process group, raises as `ProcessGroup.call`."""
        return jax.device_get(outputs) if self.process_group is None else self.process_group.read(outputs)


MAX_IN_FLIGHT = 16
"""Number of calls after which they are awaited; XLA:CPU lets 32 programs wait on a device."""


class InFlight:
    """Bounds the number of calls in flight, to avoid a deadlock of XLA:CPU.

    XLA:CPU runs the devices of one process on one pool of as many threads. A collective holds a thread of it for every
    device that has arrived; so does a call for a device on which 32 programs wait already. If the remaining devices
    find no free thread, nothing moves any more, and XLA ends the process after 40 seconds.

    Args:
        shared: whether the programs run on several such devices; otherwise nothing is awaited.
    """

    def __init__(self, shared: bool):
        self._shared = shared
        self._results: list[Any] = []

    def add(self, results: Any) -> None:
        """Add the results of a call, any pytree of arrays; later calls may donate them."""
        if not self._shared:
            return
        self._results.append(results)
        if len(self._results) == MAX_IN_FLIGHT:
            # Arrays donated to a later call are ready before the results of that call, which are awaited too.
            results, self._results = self._results, []
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(results) if not leaf.is_deleted()])
