"""Signals that end a command."""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
EXIT_INTERRUPTED = [128 + number for number in (signal.SIGINT, *ENDING)]
"""Exit statuses of an interrupted command."""
SECONDS_BETWEEN_SIGNALS = 0.02


class Ended(KeyboardInterrupt):
    """A signal that ends the command."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(f"ended by {signal.Signals(number).name}")


def number_of(interrupt: KeyboardInterrupt) -> int:
    return getattr(interrupt, "number", signal.SIGINT)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Ended for a signal that would end the process without a message.

    Ignored signals (nohup) stay ignored. A process of a group ends at once.
    """
    chosen = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if jax.distributed.is_initialized() or threading.current_thread() is not threading.main_thread():
        chosen = []

    def end(number: int, frame: object) -> None:
        raise Ended(number)

    for number in chosen:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in chosen:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_repeated() -> Iterator[None]:
    """Send a signal again after Python has ignored its exception.

    Python ignores exceptions in finalizers and in callbacks of the garbage collector; JAX has such a callback.
    """
    hook, over = sys.unraisablehook, threading.Event()

    def send(number: int) -> None:
        if not over.wait(SECONDS_BETWEEN_SIGNALS):
            os.kill(os.getpid(), number)

    def repeat(ignored: Any) -> None:
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            # The classes of `threading` take locks, which the interrupted code may hold.
            _thread.start_new_thread(send, (number_of(ignored.exc_value),))
        else:
            hook(ignored)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        over.set()
        sys.unraisablehook = hook
