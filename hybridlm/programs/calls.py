"""Calls of compiled steps, by this process alone or by all that run a model together.

How many programs may wait to run on devices that share the threads of a CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.multiprocess.crew import Crew
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
        crew: the processes that run it together; None for this one alone.
        share_threads: see `Placement.share_threads`.
    """

    def __init__(self, programs: Programs, crew: Crew | None, share_threads: bool):
        self._programs, self.crew, self._in_flight = programs, crew, InFlight(share_threads)

    def __call__(self, shape: S, examples: Callable[[S], tuple[Any, ...]], *args: Any) -> Any:
        """Call it with arguments; `examples` gives some of a shape to compile it for.

        Raises IsolationError, AuditError, HloError where the step is refused; in a crew, as `Crew.call`.
        """
        if self.crew is not None:  # it never has more than a few on their way
            return self.crew.call(shape, lambda: self._programs.compiled(shape, examples), args)
        results = self._programs.compiled(shape, examples)(*args)
        self._in_flight.add(results)
        return results

    def new_pool(self, count: int, new_rows: Callable[[int], Rows]) -> RowPool:
        """A pool of so many rows, in all processes."""
        if self.crew is None:
            return RowPool(new_rows(count))
        number = self.crew.new_number()
        self.crew.tell(Operation("rows", (number, count)))
        pool = RowPool(new_rows(count))
        self.crew.named(pool, number)
        return pool

    def tell_run(self, shape: Shape, pool: RowPool, operands: Sequence[Any]) -> None:
        """The step that is called next, and its operands on the host."""
        if self.crew is not None:
            self.crew.tell(*run_operation(self.crew.number(pool), pool.size, shape, operands))

    def tell_copy(self, source: RowPool, target: RowPool, maps: tuple[np.ndarray, np.ndarray]) -> None:
        """The copy of a row that is called next; the row that is read and the one that is written, int32 [1] each."""
        if self.crew is not None:
            numbers = self.crew.number(source), source.size, self.crew.number(target), target.size
            self.crew.tell(*copy_operation(numbers, maps))

    def whole(self, outputs: Any) -> Any:
        """What a step returned of all lanes, where `read` can read it."""
        return outputs if self.crew is None else self.crew.whole(outputs)

    def read(self, outputs: Any) -> Any:
        """Wait for what steps returned; on the host. In a crew, raises as `Crew.call`."""
        return jax.device_get(outputs) if self.crew is None else self.crew.read(outputs)


MOST = 16
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
        if len(self._results) == MOST:
            # What a later call has consumed is ready before that call's results, which are here, too.
            results, self._results = self._results, []
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(results) if not leaf.is_deleted()])
