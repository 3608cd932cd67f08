"""Decisions that do not follow from requests, and their broadcast.

Schedulers are deterministic in commands (open a session, add or cancel a request, run a step ...) and decisions
(measured times, proposals of a user's drafter, interrupts). Process 0 broadcasts both; other schedulers repeat them.
"""

import itertools
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hybridlm.multiprocess.environment import Disagreement
from hybridlm.multiprocess.messages import Message, Messages

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """Interruption of a command, after the same step in all processes."""


class DecisionFailed(RuntimeError):
    """Exception of process 0 in place of a decision."""


class Broadcast:
    """Commands and decisions of a run: process 0 sends, the others receive.

    Args:
        history: digest of all dispatched steps.
    """

    def __init__(
        self, messages: Messages, *, leads: bool, history: Callable[[], int] = lambda: 0, where: str = "process"
    ):
        self._messages, self.leads, self._history, self._where = messages, leads, history, where
        self._lock, self._depth = threading.RLock(), 0
        self._next_number = itertools.count()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._things: dict[int, Any] = {}
        self._freed: deque[int] = deque()
        self._interrupts: list[Any] = []

    @contextmanager
    def command(self, kind: str, **arguments: Any) -> Iterator[None]:
        """Send a command and run it; nested commands are not sent."""
        with self._lock:
            self._depth += 1
            try:
                if not self.leads or self._depth > 1:
                    yield
                    return
                while self._freed:
                    self._messages.send(Message("drop", {"number": self._freed.popleft()}, self._history()))
                self._messages.send(Message(kind, arguments, self._history()), self._numbers)
                with self._deferred_interrupts():
                    yield
            finally:
                self._depth -= 1

    def decide(self, make: Callable[[], T]) -> T:
        """Return process 0's result of `make`, within a command."""
        if self.leads:
            try:
                value = make()
            except Exception as error:
                self._messages.send(Message("failed", {"error": type(error).__name__}, self._history()))
                raise
            self._messages.send(Message("decided", {"value": value}, self._history()))
            return value
        message = self.receive()
        if message.kind == "failed":
            raise DecisionFailed(f"process 0 raised {message.arguments['error']}")
        if message.kind != "decided":
            raise Disagreement(f"{self._where}: expected a decision of process 0, got the command {message.kind!r}")
        return message.arguments["value"]

    def checkpoint(self) -> None:
        """Raise `Interrupted` in every process if process 0 was interrupted."""
        if self.decide(lambda: bool(self._interrupts)):
            self._interrupts.clear()
            raise Interrupted

    def share(self, thing: Any) -> None:
        """Number an object of commands; process 0 announces its end."""
        number = next(self._next_number)
        self._numbers[thing] = number
        if self.leads:
            weakref.finalize(thing, self._freed.append, number).atexit = False
        else:
            self._things[number] = thing

    def receive(self) -> Message:
        """Wait for process 0's next message; drop objects that it dropped.

        Raises:
            Disagreement: other steps have been dispatched, or the message is damaged.
            ProcessLost: process 0 does not answer.
        """
        while True:
            message = self._messages.receive(self._things)
            if message.history != self._history():
                raise Disagreement(
                    f"{self._where}: steps before message {self._messages.count - 1} ({message.kind}): expected the "
                    f"digest {message.history:08x} as process 0 has, got {self._history():08x}"
                )
            if message.kind != "drop":
                return message
            del self._things[message.arguments["number"]]

    def end(self) -> None:
        if self.leads:
            self._messages.send(Message("end", {}, self._history()))

    @contextmanager
    def _deferred_interrupts(self) -> Iterator[None]:
        """Defer SIGINT to a checkpoint or the command's end: others cannot stop before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda *signal_args: self._interrupts.append(signal_args))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
            interrupts, self._interrupts = self._interrupts, []
            if interrupts and callable(handler):
                handler(*interrupts[0])
