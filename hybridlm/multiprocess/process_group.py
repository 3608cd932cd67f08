"""Processes of one model: they agree on programs, and every step checks operands."""

import atexit
import itertools
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.multiprocess.decisions import Broadcast
from hybridlm.multiprocess.environment import Disagreement, ProcessLost
from hybridlm.multiprocess.heartbeat import take_heartbeat
from hybridlm.multiprocess.messages import KeyValues, Messages
from hybridlm.multiprocess.operand_check import DIGEST_WORDS
from ir_passes import AuditError, CompiledStep, IsolationError
from ir_passes.compile.stored import StoredStep
from ir_passes.xla_audit.hlo import HloError

_MAX_IN_FLIGHT = 16
"""Steps dispatched beyond known successes."""
_POLL = 0.5
_counter = itertools.count()
Program = CompiledStep | StoredStep


class PendingStep(NamedTuple):
    """A step in flight.

    Attributes:
        fields: digests by operand.
        agree: result of its operand check, on the devices.
    """

    number: int
    step: str
    fields: dict[str, int]
    message: int
    agree: Any


class ProcessGroup:
    """This process and the others of one model."""

    def __init__(self, placement: Placement):
        self.process, self.count = jax.process_index(), jax.process_count()
        self._placement = placement
        # Equal in all processes, which load their models in the same order.
        self._store = KeyValues(f"hybridlm/{next(_counter)}")
        self.heartbeat = take_heartbeat(self._store, self.process)
        self._dispatched = self._history = 0
        self._pending: deque[PendingStep] = deque()
        self._ended = False
        self._agreed: dict[Any, int] = {}
        self._programs = itertools.count()
        self._replicate = jax.jit(lambda tree: tree, out_shardings=placement.over())
        self.messages = Messages(self)
        self.decisions = Broadcast(
            self.messages, leads=self.process == 0, history=lambda: self._history, where=f"process {self.process}"
        )
        if self.decisions.leads:
            atexit.register(self.end)

    def agree_on(self, name: str, values: dict[str, Any], where: str = "") -> None:
        """Check that all processes have equal values.

        Args:
            name: unique key of this check.

        Raises:
            Disagreement: names all that differ from process 0.
        """
        answers = self._exchange(name, {field: str(value) for field, value in values.items()})
        faults = [
            f"process {other}: {field}: expected {value} as process 0 has, got {answer.get(field)}"
            for other, answer in enumerate(answers)
            for field, value in answers[0].items()
            if answer.get(field) != value
        ]
        if faults:
            raise Disagreement(f"{where}{'; '.join(faults)}")

    def _exchange(self, name: str, value: Any) -> list[Any]:
        with self.waiting():
            self._store.set(f"{name}/{self.process}", json.dumps(value).encode())
            return [json.loads(self._receive(f"{name}/{other}")) for other in range(self.count)]

    def _receive(self, name: str) -> bytes:
        while (value := self._store.get(name, _POLL)) is None:
            self._raise_if_lost()
        return value

    def _raise_if_lost(self) -> None:
        if self.heartbeat.failure is not None:
            self.heartbeat.stop()
            raise ProcessLost(f"{self.heartbeat.failure}; steps in flight are lost, run the same command again")

    # -- the store of the messages

    def set(self, name: str, value: bytes) -> None:
        self.heartbeat.epoch = self.messages.count
        with self.waiting():
            self._store.set(name, value)

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def get(self, name: str) -> bytes:
        """Wait for process 0's value and check steps in flight; raises as `call`."""
        while True:
            self.heartbeat.epoch = self.messages.count
            with self.waiting():
                data = self._store.get(name, _POLL)
            self._check()
            self._raise_if_lost()
            if data is not None:
                return data

    def end(self) -> None:
        """Stop the heartbeat; process 0 broadcasts the end."""
        if not self._ended:
            self._ended = True
            self.decisions.end()
        self.heartbeat.stop()

    # -- running

    def agree_on_program(self, shape: Any, compiled: Callable[[Callable[[bool], bool]], Program]) -> Program:
        """Return a program once every process has it, and check equality.

        Otherwise the first process would block its devices while others compile.

        Raises:
            IsolationError, AuditError, HloError: refused in all processes.
            Disagreement: another program, or a refusal, in another process.
        """
        if shape in self._agreed:
            return compiled(bool)
        values, number = {"step": str(shape)}, next(self._programs)
        try:
            with self.busy_with(str(shape)):
                program = compiled(lambda has_program: all(self._exchange(f"kept/{number}", has_program)))
        except (IsolationError, AuditError, HloError) as error:
            self.agree_on(f"program/{number}", values | {"refused": type(error).__name__}, f"{shape}: ")
            raise
        prints = program.certificate.fingerprints
        values |= {"refused": "", "program": prints.compiled, "order of collectives": prints.schedule}
        self.agree_on(f"program/{number}", values, f"{shape}: ")
        self._agreed[shape] = zlib.crc32(prints.compiled.encode())
        return program

    def call(self, shape: Any, program: Program, args: tuple[Any, ...], fields: dict[str, int]) -> tuple[Any, ...]:
        """Dispatch a step that all have agreed on.

        Args:
            shape, program, args: `program(*args)` without the last argument.
            fields: digests by operand.

        Raises:
            Disagreement: different operands of an earlier step.
            ProcessLost: another process has ended.
        """
        fields = {"step": self._dispatched, "program": self._agreed[shape], **fields}
        digest = np.zeros(DIGEST_WORDS, np.uint32)
        digest[: len(fields)] = list(fields.values())
        with self.waiting():
            self._check(len(self._pending) >= _MAX_IN_FLIGHT)
            *results, agree = program(*args, self._placement.put_whole(digest))
        self._pending.append(PendingStep(self._dispatched, str(shape), fields, self.messages.count, agree))
        self._dispatched += 1
        self._history = zlib.crc32(str(shape).encode(), self._history)
        return tuple(results)

    def replicate(self, outputs: Any) -> Any:
        with self.waiting():
            return self._replicate(outputs)

    def read(self, outputs: Any) -> Any:
        with self.waiting():
            values = jax.device_get(outputs)
        self._check()
        return values

    @contextmanager
    def busy_with(self, activity: str) -> Iterator[None]:
        """Mark long work: this process does not count as lagging."""
        self.heartbeat.busy = activity
        try:
            yield
        finally:
            self.heartbeat.busy = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise ProcessLost if another process caused a failure."""
        try:
            yield
        except jax.errors.JaxRuntimeError:
            self.heartbeat.wait_for_cause()
            self._raise_if_lost()
            raise

    def check_all(self) -> None:
        """Wait for all steps in flight; raises as `call`."""
        with self.waiting():
            while self._pending:
                self._check(wait=True)

    def _check(self, wait: bool = False) -> None:
        while self._pending and (wait or self._pending[0].agree.is_ready()):
            wait, pending = False, self._pending.popleft()
            with self.waiting():
                agree = bool(pending.agree.addressable_shards[0].data)
            if not agree:
                self._disagree(pending)
            if self.decisions.leads:
                self.messages.forget(pending.message)

    def _disagree(self, pending: PendingStep) -> None:
        where = f"step {pending.number} ({pending.step}): processes have different operands, no row was written: "
        self.agree_on(f"digest/{pending.number}", pending.fields, where)
        raise Disagreement(f"{where}other slot maps reached their devices")
