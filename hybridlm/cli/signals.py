"""End a command on a signal: report rows on disk, exit with the signal's status."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax

ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


EXIT_INTERRUPTED = [128 + number for number in (signal.SIGINT, *ENDING)]
"""Exit statuses of an interrupted command."""


class Ended(KeyboardInterrupt):
    """A signal that ends the command, raised wherever it runs."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(f"ended by {signal.Signals(number).name}")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Ended for a signal that would end the process without a word.

    Ignored signals (nohup) stay ignored. A process of a group ends at once: another one may be gone.
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
