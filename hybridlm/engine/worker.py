"""The worker loop of processes other than 0: repeat the operations that process 0 broadcasts, in order."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.warmup import warm_up
from hybridlm.multiprocess.environment import Disagreement, ProcessLost, exit_peer_lost
from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.multiprocess.records import Operation
from hybridlm.programs.operations import PARTS, run_of
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import RowPool

Things = dict[int, RowPool | CachedBuffers]


def run_worker(engine: Engine, process_group: ProcessGroup) -> None:
    """Repeat operations until process 0 ends; a process that cannot go on reports why and exits.

    It must exit, since all other processes wait for it.
    """
    things: Things = {}
    try:
        while (operation := process_group.next()).kind != "end":
            _run(engine, process_group, things, operation)
        process_group.check_all()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        print(f"error: process {process_group.process}: {message}", file=sys.stderr, flush=True)
        if not isinstance(error, ProcessLost):
            process_group.heartbeat.report_failure(message)
        exit_peer_lost()
    process_group.end()


def _run(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    _OPERATIONS[operation.kind](engine, process_group, things, operation)


def _rows(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    number, count = operation.numbers
    things[number] = pool = RowPool(engine.new_rows(count))
    process_group.register(pool, number)


def _drop(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    del things[operation.numbers[0]]


def _step(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    number, rows, shape, batch, operands = run_of(operation)
    pool = _pool(process_group, things, number, rows)
    engine.run(shape, pool, batch, *operands, owners=(), counts=np.zeros(rows, np.int32))


def _copy(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    source, rows, target, to = operation.numbers
    read, write = operation.arrays
    engine.copy_row(_pool(process_group, things, source, rows), read, _pool(process_group, things, target, to), write)


def _keep(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    number, rows, part, buffers_id, position = operation.numbers
    pool = _pool(process_group, things, number, rows)
    things[buffers_id] = engine.moves.keep(PARTS[part], pool, operation.arrays, position, buffers_id)


def _restore(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    number, rows, part, buffers_id, _ = operation.numbers
    arrays = things[buffers_id]
    assert isinstance(arrays, CachedBuffers)
    engine.moves.put_back(arrays, PARTS[part], _pool(process_group, things, number, rows), operation.arrays)


def _warm_up(engine: Engine, process_group: ProcessGroup, things: Things, operation: Operation) -> None:
    with process_group.compiling("warmup"):
        warm_up(engine, bool(operation.numbers[0]), False)


_OPERATIONS: dict[str, Callable[[Engine, ProcessGroup, Things, Operation], Any]] = {
    "rows": _rows, "drop": _drop, "run": _step, "copy": _copy, "keep": _keep, "restore": _restore, "warm up": _warm_up,
}  # fmt: skip


def _pool(process_group: ProcessGroup, things: Things, number: int, rows: int) -> RowPool:
    """Return a pool of this process; raises Disagreement if its size differs from that in process 0."""
    pool = things[number]
    assert isinstance(pool, RowPool)
    if pool.size != rows:
        raise Disagreement(
            f"process {process_group.process}: rows of pool {number}: expected {rows} as process 0 has, got "
            f"{pool.size}; no row was written"
        )
    return pool
