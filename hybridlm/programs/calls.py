"""Calls of compiled steps, by this process alone or by all that run a model together.

How many programs may wait to run on devices that share the threads of a CPU.
"""

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
    """Calls the program of a shape, compiled on first use. What is told to other processes is nothing to one alone.

    Args:
        programs: has it.
        process_group: the processes that run it together; None for this one alone.
        share_threads: see `Placement.share_threads`.
    """

    def __init__(self, programs: Programs, process_group: ProcessGroup | None, share_threads: bool):
        self._programs, self.process_group, self._in_flight = programs, process_group, InFlight(share_threads)

    def __call__(self, shape: S, examples: Callable[[S], tuple[Any, ...]], *args: Any) -> Any:
        """Call it with arguments; `examples` gives some of a shape to compile it for.

        Raises IsolationError, AuditError, HloError where the step is refused; in a process_group, as `ProcessGroup.call`.
        """
        if self.process_group is not None:  # it never has more than a few on their way
            return self.process_group.call(shape, lambda: self._programs.compiled(shape, examples), args)
        results = self._programs.compiled(shape, examples)(*args)
        self._in_flight.add(results)
        return results

    def new_pool(self, count: int, new_rows: Callable[[int], Rows]) -> RowPool:
        """A pool of so many rows, in all processes."""
        if self.process_group is None:
            return RowPool(new_rows(count))
        number = self.process_group.new_number()
        self.process_group.broadcast(Operation("rows", (number, count)))
        pool = RowPool(new_rows(count))
        self.process_group.register(pool, number)
        return pool

    def broadcast_run(self, shape: Shape, pool: RowPool, operands: Sequence[Any]) -> None:
        """The step that is called next, and its operands on the host."""
        if self.process_group is not None:
            self.process_group.broadcast(*run_operation(self.process_group.number(pool), pool.size, shape, operands))

    def broadcast_copy(self, source: RowPool, target: RowPool, maps: tuple[np.ndarray, np.ndarray]) -> None:
        """The copy of a row that is called next; the row that is read and the one that is written, int32 [1] each."""
        if self.process_group is not None:
            numbers = self.process_group.number(source), source.size, self.process_group.number(target), target.size
            self.process_group.broadcast(*copy_operation(numbers, maps))

    def replicate(self, outputs: Any) -> Any:
        """What a step returned of all lanes, where `read` can read it."""
        return outputs if self.process_group is None else self.process_group.replicate(outputs)

    def read(self, outputs: Any) -> Any:
        """Wait for what steps returned; on the host. In a process_group, raises as `ProcessGroup.call`."""
        return jax.device_get(outputs) if self.process_group is None else self.process_group.read(outputs)


MAX_IN_FLIGHT = 16
"""Calls after which they are waited for; XLA:CPU lets 32 programs wait on a device."""


class InFlight:
    """Waits, now and then, until every program that was called has run.

    XLA:CPU runs the devices of one process on one pool of as many threads. An exchange between devices holds a thread
    of it for every device that has arrived; so does a call for a device on which 32 programs wait already. If the
    devices that are still to arrive find no thread, nothing moves any more, and XLA ends the process after 40 seconds.

    Args:
        shared: whether the programs run on several such devices; nothing is waited for otherwise.
    """

    def __init__(self, shared: bool):
        self._shared = shared
        self._results: list[Any] = []

    def add(self, results: Any) -> None:
        """What a call returned, any pytree of arrays; later calls may consume them."""
        if not self._shared:
            return
        self._results.append(results)
        if len(self._results) == MAX_IN_FLIGHT:
            # What a later call has consumed is ready before that call's results, which are here, too.
            results, self._results = self._results, []
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(results) if not leaf.is_deleted()])
