"""The processes that run one model together: process 0 decides what is run, the others run the same."""

import itertools
import json
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.multiprocess.environment import Disagreement, ProcessLost
from hybridlm.multiprocess.heartbeat import take_heartbeat
from hybridlm.multiprocess.key_values import KeyValues
from hybridlm.multiprocess.operand_check import DIGEST_WORDS
from hybridlm.multiprocess.records import KINDS, Operation, from_records, to_records
from ir_passes import CompiledStep
from ir_passes.compile.stored_step import StoredStep

_MAX_IN_FLIGHT = 16
"""Operations that a process dispatches beyond those known to have succeeded."""
_BLOCK = 256
"""Number of operations that are deleted from the store together."""
_POLL = 0.5
_counter = itertools.count()


class PendingStep(NamedTuple):
    """A step in flight.

    Attributes:
        epoch: number of its operation.
        what: the step, for messages.
        fields: names of the entries of the digest.
        digest: digest of this process's operation.
        agree: result of the step's operand check, on the devices.
    """

    epoch: int
    what: str
    fields: tuple[str, ...]
    digest: np.ndarray
    agree: Any


class ProcessGroup:
    """This process, among those that run one model.

    Args:
        placement: the devices, of several processes.

    Attributes:
        process, count: number of this process, and of all.
        is_leader: whether this is process 0.
        heartbeat: watches the others.
    """

    def __init__(self, placement: Placement):
        self.process, self.count = jax.process_index(), jax.process_count()
        self.is_leader = self.process == 0
        self._placement = placement
        # The counter agrees between processes, since all load their models in the same order.
        self._store = KeyValues(f"hybridlm/{next(_counter)}")
        self.heartbeat = take_heartbeat(self._store, self.process)
        self._epoch = 0
        self._current: tuple[int, Operation, tuple[str, ...]] = 0, Operation("end"), ()
        self._pending: deque[PendingStep] = deque()
        self._agreed: set[Any] = set()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._freed: deque[int] = deque()
        self._ended = False
        self._replicate = jax.jit(lambda tree: tree, out_shardings=placement.over())

    def agree_on(self, name: str, values: dict[str, Any], where: str = "") -> None:
        """Check that all processes have the same values.

        Args:
            name: key of this check: the same in all processes, and unique.
            values: values of this process.
            where: beginning of the message.

        Raises:
            Disagreement: a process has another value than process 0; names every one.
            ProcessLost: a process does not answer.
        """
        with self.waiting():
            mine = {field: str(value) for field, value in values.items()}
            self._store.set(f"{name}/{self.process}", json.dumps(mine).encode())
            said = [json.loads(self._receive(f"{name}/{other}")) for other in range(self.count)]
        faults = [
            f"process {other}: {field}: expected {value} as process 0 has, got {one.get(field)}"
            for other, one in enumerate(said)
            for field, value in said[0].items()
            if one.get(field) != value
        ]
        if faults:
            raise Disagreement(f"{where}{'; '.join(faults)}")

    def _receive(self, name: str) -> bytes:
        """Wait for a value of another process, until one of them has ended."""
        while (said := self._store.get(name, _POLL)) is None:
            self._raise_if_lost()
        return said

    def _raise_if_lost(self) -> None:
        """Raise ProcessLost if a process is known to have ended."""
        if self.heartbeat.failure is not None:
            self.heartbeat.stop()
            raise ProcessLost(f"{self.heartbeat.failure}; steps in flight are lost, run the same command again")

    # -- broadcasting

    def broadcast(self, operation: Operation, fields: tuple[str, ...] = ()) -> None:
        """Set the operation that is run next; process 0 broadcasts it.

        Args:
            operation: the operation.
            fields: names of its numbers, followed by those of its arrays.
        """
        if self.is_leader:
            while self._freed:
                self._send(Operation("drop", (self._freed.popleft(),)))
            self._send(operation)
        self._current = self._epoch - 1, operation, fields

    def next(self) -> Operation:
        """Wait for the next operation of process 0; meanwhile check the steps in flight.

        Raises:
            BroadcastError: the record is damaged.
            Disagreement: see `call`.
            ProcessLost: process 0 does not answer.
        """
        while True:
            with self.waiting():
                data = self._store.get(self._key(self._epoch), _POLL)
            self._check()
            self._raise_if_lost()
            if data is not None:
                operation = from_records(data, self._epoch)
                self._epoch += 1
                self.heartbeat.epoch = self._epoch
                return operation

    def end(self) -> None:
        """Broadcast the end of the run, if this is process 0, and stop the heartbeat."""
        if self.is_leader and not self._ended:
            self._ended = True
            self._send(Operation("end"))
        self.heartbeat.stop()

    def _send(self, operation: Operation) -> None:
        with self.waiting():
            self._store.set(self._key(self._epoch), to_records(self._epoch, operation))
        self._epoch += 1
        self.heartbeat.epoch = self._epoch

    @staticmethod
    def _key(epoch: int) -> str:
        return f"operation/{epoch // _BLOCK}/{epoch}"

    # -- numbers of pools and cached buffers

    def number(self, thing: Any) -> int:
        """Return the number of a pool or of cached buffers: the same in all processes."""
        return self._numbers[thing]

    def new_number(self) -> int:
        """Return an unused number."""
        return next(self._next_number)

    def register(self, thing: Any, number: int | None = None) -> int:
        """Assign a number; when process 0 frees the object, the others free theirs."""
        number = self.new_number() if number is None else number
        self._numbers[thing] = number
        if self.is_leader:
            weakref.finalize(thing, self._freed.append, number).atexit = False
        return number

    # -- running

    def call(
        self, shape: Any, compiled: Callable[[], CompiledStep | StoredStep], args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Dispatch the step of the current operation, as `compiled()(*args)`.

        Raises:
            IsolationError, AuditError, HloError: the step is refused.
            Disagreement: an earlier step found different operands.
            ProcessLost: another process has ended or does not answer.
        """
        epoch, operation, fields = self._current
        with self.compiling(str(shape)):
            program = compiled()
        with self.waiting():
            self._check(len(self._pending) >= _MAX_IN_FLIGHT)
            if shape not in self._agreed:
                self._agree_on_program(shape, program)
            digest = self._digest_of(epoch, operation, program)
            *results, agree = program(*args, self._placement.put_whole(digest))
        named = ("epoch", "operation", "program", *fields)
        self._pending.append(PendingStep(epoch, str(shape), named, digest, agree))
        return tuple(results)

    def replicate(self, outputs: Any) -> Any:
        """Replicate a step's outputs of all lanes on every device, for the host to read."""
        with self.waiting():
            return self._replicate(outputs)

    def read(self, outputs: Any) -> Any:
        """Wait for outputs of a step. Raises as `call`."""
        with self.waiting():
            found = jax.device_get(outputs)
        self._check()
        return found

    @contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Mark this process as busy with work that may take long."""
        self.heartbeat.busy = what
        try:
            yield
        finally:
            self.heartbeat.busy = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Run work that depends on the other processes; raises ProcessLost if one of them made it fail."""
        try:
            yield
        except jax.errors.JaxRuntimeError:
            self.heartbeat.wait_for_cause()
            self._raise_if_lost()
            raise

    def _digest_of(self, epoch: int, operation: Operation, program: CompiledStep | StoredStep) -> np.ndarray:
        numbers = [number & 0xFFFFFFFF for number in operation.numbers]
        found = [epoch, KINDS.index(operation.kind), _digest(program), *numbers]
        found += [zlib.crc32(array.tobytes()) for array in operation.arrays]
        digest = np.zeros(DIGEST_WORDS, np.uint32)
        digest[: len(found)] = found
        return digest

    def check_all(self) -> None:
        """Wait for all steps in flight. Raises as `call`."""
        with self.waiting():
            while self._pending:
                self._check(wait=True)

    def _check(self, wait: bool = False) -> None:
        """Check the steps that are done; `wait` for the oldest."""
        while self._pending and (wait or self._pending[0].agree.is_ready()):
            wait, pending = False, self._pending.popleft()
            with self.waiting():
                agree = bool(pending.agree.addressable_shards[0].data)
            if not agree:
                self._disagree(pending)
            if self.is_leader and pending.epoch % _BLOCK == 0 and pending.epoch:
                self._store.delete(f"operation/{pending.epoch // _BLOCK - 1}")

    def _disagree(self, pending: PendingStep) -> None:
        """Raise Disagreement with the fields in which processes differ."""
        where = (
            f"operation {pending.epoch} ({pending.what}): processes received different operations, no row was written: "
        )
        self.agree_on(
            f"digest/{pending.epoch}", dict(zip(pending.fields, pending.digest.tolist(), strict=False)), where
        )
        raise Disagreement(f"{where}other slot maps reached their devices")

    def _agree_on_program(self, shape: Any, program: CompiledStep | StoredStep) -> None:
        """Wait until every process has compiled a program, and check that the programs are equal.

        Without waiting, the first process to run it would block its devices until the others have compiled.
        """
        prints = program.certificate.fingerprints
        values = {"program": prints.compiled, "order of collectives": prints.schedule}
        self.agree_on(f"program/{len(self._agreed)}", values, f"{shape}: ")
        self._agreed.add(shape)


def _digest(program: CompiledStep | StoredStep) -> int:
    """Return a digest of the program, in 32 bits."""
    return zlib.crc32(program.certificate.fingerprints.compiled.encode())
