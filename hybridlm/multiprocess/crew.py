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
from hybridlm.multiprocess.agreement import WORDS
from hybridlm.multiprocess.environment import Disagreement, ProcessLost
from hybridlm.multiprocess.key_values import KeyValues
from hybridlm.multiprocess.records import KINDS, Operation, from_records, to_records
from hybridlm.multiprocess.watch import take_watch
from ir_passes import CompiledStep, StoredStep

_AHEAD = 16
"""Operations that a process runs ahead of what it knows to have gone well."""
_BLOCK = 256
"""Plans that are forgotten together."""
_POLL = 0.5
_counter = itertools.count()


class Told(NamedTuple):
    """A step on its way.

    Attributes:
        epoch: of its operation.
        what: the step, in words.
        fields: names of the words.
        words: what this process's plan amounts to.
        agree: what the step found, on the devices.
    """

    epoch: int
    what: str
    fields: tuple[str, ...]
    words: np.ndarray
    agree: Any


class Crew:
    """This process, among those that run one model.

    Args:
        placement: the devices, of several processes.

    Attributes:
        process, count: which process this is, of how many.
        leads: whether this is process 0.
        watch: over the others.
    """

    def __init__(self, placement: Placement):
        self.process, self.count = jax.process_index(), jax.process_count()
        self.leads = self.process == 0
        self._placement = placement
        # Models are loaded in the same order in all processes.
        self._store = KeyValues(f"hybridlm/{next(_counter)}")
        self.watch = take_watch(self._store, self.process)
        self._epoch = 0
        self._current: tuple[int, Operation, tuple[str, ...]] = 0, Operation("end"), ()
        self._on_way: deque[Told] = deque()
        self._same: set[Any] = set()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._gone: deque[int] = deque()
        self._over = False
        self._whole = jax.jit(lambda tree: tree, out_shardings=placement.over())

    def agree_on(self, name: str, values: dict[str, Any], where: str = "") -> None:
        """Check that all processes have the same values.

        Args:
            name: the same on all processes, and another one each time.
            values: of this process.
            where: for the message.

        Raises:
            Disagreement: a process has another value than process 0; names every one.
            ProcessLost: a process does not say.
        """
        with self.waiting():
            mine = {field: str(value) for field, value in values.items()}
            self._store.set(f"{name}/{self.process}", json.dumps(mine).encode())
            said = [json.loads(self._heard(f"{name}/{other}")) for other in range(self.count)]
        faults = [
            f"process {other}: {field}: expected {value} as process 0 has, got {one.get(field)}"
            for other, one in enumerate(said)
            for field, value in said[0].items()
            if one.get(field) != value
        ]
        if faults:
            raise Disagreement(f"{where}{'; '.join(faults)}")

    def _heard(self, name: str) -> bytes:
        """What another process says, however long that takes, unless one has ended."""
        while (said := self._store.get(name, _POLL)) is None:
            self._go_on()
        return said

    def _go_on(self) -> None:
        """Raises ProcessLost where it is known that a process has ended."""
        if self.watch.known is not None:
            self.watch.stop()
            raise ProcessLost(f"{self.watch.known}; what was on its way is lost, run the same command again")

    # -- telling

    def tell(self, operation: Operation, fields: tuple[str, ...] = ()) -> None:
        """What is run next; process 0 tells the others.

        Args:
            operation: it.
            fields: names of its numbers and then of its arrays.
        """
        if self.leads:
            while self._gone:
                self._send(Operation("drop", (self._gone.popleft(),)))
            self._send(operation)
        self._current = self._epoch - 1, operation, fields

    def next(self) -> Operation:
        """What process 0 tells next; meanwhile this looks whether what was run has gone well.

        Raises:
            PlanError: what it told is damaged.
            Disagreement: see `call`.
            ProcessLost: it does not answer.
        """
        while True:
            with self.waiting():
                data = self._store.get(self._plan(self._epoch), _POLL)
            self._check()
            self._go_on()
            if data is not None:
                operation = from_records(data, self._epoch)
                self._epoch += 1
                self.watch.epoch = self._epoch
                return operation

    def end(self) -> None:
        """Process 0 has nothing more to run."""
        if self.leads and not self._over:
            self._over = True
            self._send(Operation("end"))
        self.watch.stop()

    def _send(self, operation: Operation) -> None:
        with self.waiting():
            self._store.set(self._plan(self._epoch), to_records(self._epoch, operation))
        self._epoch += 1
        self.watch.epoch = self._epoch

    @staticmethod
    def _plan(epoch: int) -> str:
        return f"plan/{epoch // _BLOCK}/{epoch}"

    # -- what is told of

    def number(self, thing: Any) -> int:
        """The number of a pool, or of arrays that are kept: the same in all processes."""
        return self._numbers[thing]

    def new_number(self) -> int:
        """A number that nothing has."""
        return next(self._next_number)

    def named(self, thing: Any, number: int | None = None) -> int:
        """Give it a number; where process 0 lets go of it, the others do."""
        number = self.new_number() if number is None else number
        self._numbers[thing] = number
        if self.leads:
            weakref.finalize(thing, self._gone.append, number).atexit = False
        return number

    # -- running

    def call(
        self, shape: Any, compiled: Callable[[], CompiledStep | StoredStep], args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Dispatch the step that was told of, as `compiled()(*args)`.

        Raises:
            IsolationError, AuditError, HloError: the step is refused.
            Disagreement: an earlier step found that processes were told different things.
            ProcessLost: another process has ended or does not answer.
        """
        epoch, operation, fields = self._current
        with self.compiling(str(shape)):
            program = compiled()
        with self.waiting():
            self._check(len(self._on_way) >= _AHEAD)
            if shape not in self._same:
                self._same_program(shape, program)
            words = self._words(epoch, operation, program)
            *results, agree = program(*args, self._placement.put_whole(words))
        named = ("epoch", "operation", "program", *fields)
        self._on_way.append(Told(epoch, str(shape), named, words, agree))
        return tuple(results)

    def whole(self, outputs: Any) -> Any:
        """What a step returned of all lanes, on every device, for the host to read."""
        with self.waiting():
            return self._whole(outputs)

    def read(self, outputs: Any) -> Any:
        """Wait for what a step returned. Raises as `call`."""
        with self.waiting():
            found = jax.device_get(outputs)
        self._check()
        return found

    @contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """This process is about to do what may take long."""
        self.watch.busy = what
        try:
            yield
        finally:
            self.watch.busy = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for something that needs the other processes."""
        try:
            yield
        except jax.errors.JaxRuntimeError:
            self.watch.find_out()
            self._go_on()
            raise

    def _words(self, epoch: int, operation: Operation, program: CompiledStep | StoredStep) -> np.ndarray:
        numbers = [number & 0xFFFFFFFF for number in operation.numbers]
        found = [epoch, KINDS.index(operation.kind), _digest(program), *numbers]
        found += [zlib.crc32(array.tobytes()) for array in operation.arrays]
        words = np.zeros(WORDS, np.uint32)
        words[: len(found)] = found
        return words

    def check_all(self) -> None:
        """Wait for all steps. Raises as `call`."""
        with self.waiting():
            while self._on_way:
                self._check(wait=True)

    def _check(self, wait: bool = False) -> None:
        """Look at the steps that are done; `wait` for the oldest."""
        while self._on_way and (wait or self._on_way[0].agree.is_ready()):
            wait, told = False, self._on_way.popleft()
            with self.waiting():
                agree = bool(told.agree.addressable_shards[0].data)
            if not agree:
                self._disagree(told)
            if self.leads and told.epoch % _BLOCK == 0 and told.epoch:
                self._store.forget(f"plan/{told.epoch // _BLOCK - 1}")

    def _disagree(self, told: Told) -> None:
        """Find out who was told what."""
        where = f"operation {told.epoch} ({told.what}): processes were told different things, no row was written: "
        self.agree_on(f"words/{told.epoch}", dict(zip(told.fields, told.words.tolist(), strict=False)), where)
        raise Disagreement(f"{where}other slot maps reached their devices")

    def _same_program(self, shape: Any, program: CompiledStep | StoredStep) -> None:
        """Wait until every process has compiled a program: the first to run it would wait for too long on a device."""
        prints = program.certificate.fingerprints
        values = {"program": prints.compiled, "order of collectives": prints.schedule}
        self.agree_on(f"program/{len(self._same)}", values, f"{shape}: ")
        self._same.add(shape)


def _digest(program: CompiledStep | StoredStep) -> int:
    """Names the program, in 32 bits."""
    return zlib.crc32(program.certificate.fingerprints.compiled.encode())
