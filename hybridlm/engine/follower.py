"""What processes other than the first do: run what process 0 tells, in its order, until it has nothing more to run."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.warmup import warm_up
from hybridlm.multiprocess.crew import Crew
from hybridlm.multiprocess.environment import Disagreement, ProcessLost, leave
from hybridlm.multiprocess.records import Operation
from hybridlm.programs.operations import PARTS, run_of
from hybridlm.rows.kept import CachedBuffers
from hybridlm.rows.pool import RowPool

Things = dict[int, RowPool | CachedBuffers]


def follow(engine: Engine, crew: Crew) -> None:
    """Take part until process 0 has ended; a process that cannot go on says why and ends: all others wait for it."""
    things: Things = {}
    try:
        while (operation := crew.next()).kind != "end":
            _run(engine, crew, things, operation)
        crew.check_all()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        print(f"error: process {crew.process}: {message}", file=sys.stderr, flush=True)
        if not isinstance(error, ProcessLost):
            crew.watch.failed(message)
        leave()
    crew.end()


def _run(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    _OPERATIONS[operation.kind](engine, crew, things, operation)


def _rows(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    number, count = operation.numbers
    things[number] = pool = RowPool(engine.new_rows(count))
    crew.named(pool, number)


def _drop(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    del things[operation.numbers[0]]


def _step(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    number, rows, shape, batch, operands = run_of(operation)
    pool = _pool(crew, things, number, rows)
    engine.run(shape, pool, batch, *operands, owners=(), counts=np.zeros(rows, np.int32))


def _copy(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    source, rows, target, to = operation.numbers
    read, write = operation.arrays
    engine.copy_row(_pool(crew, things, source, rows), read, _pool(crew, things, target, to), write)


def _keep(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    number, rows, part, kept, position = operation.numbers
    pool = _pool(crew, things, number, rows)
    things[kept] = engine.moves.keep(PARTS[part], pool, operation.arrays, position, kept)


def _restore(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    number, rows, part, kept, _ = operation.numbers
    arrays = things[kept]
    assert isinstance(arrays, CachedBuffers)
    engine.moves.put_back(arrays, PARTS[part], _pool(crew, things, number, rows), operation.arrays)


def _warm_up(engine: Engine, crew: Crew, things: Things, operation: Operation) -> None:
    with crew.compiling("warmup"):
        warm_up(engine, bool(operation.numbers[0]), False)


_OPERATIONS: dict[str, Callable[[Engine, Crew, Things, Operation], Any]] = {
    "rows": _rows, "drop": _drop, "run": _step, "copy": _copy, "keep": _keep, "restore": _restore, "warm up": _warm_up,
}  # fmt: skip


def _pool(crew: Crew, things: Things, number: int, rows: int) -> RowPool:
    """A pool of this process; raises Disagreement if it has another size than that of process 0."""
    pool = things[number]
    assert isinstance(pool, RowPool)
    if pool.size != rows:
        raise Disagreement(
            f"process {crew.process}: rows of pool {number}: expected {rows} as process 0 has, got {pool.size}; no row "
            "was written"
        )
    return pool
