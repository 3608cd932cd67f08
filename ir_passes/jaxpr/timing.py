"""The time of a compilation: the seconds of its phases, and a pause of Python's cycle collector while one runs.

An analysis makes many small objects, none of them garbage. The collector would walk all of them again and again, which
is a sixth of the time of an analysis.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

PHASES = ("trace", "prove", "rewrite", "lower", "compile", "audit")
T = TypeVar("T")


class Clock:
    """The seconds of each phase; a phase within another one counts only for itself.

    Args:
        before: a clock that goes on counting by itself, and whose seconds this one begins with.

    Attributes:
        seconds: by phase; those of `PHASES`, and others that were timed.
    """

    def __init__(self, before: "Clock | None" = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0) if before is None else dict(before.seconds)

    def time(self, phase: str, run: Callable[..., T], *args: Any, **options: Any) -> T:
        """Return `run(*args, **options)` and add its seconds to the phase."""
        before, started = sum(self.seconds.values()), time.perf_counter()
        try:
            return run(*args, **options)
        finally:
            inner = sum(self.seconds.values()) - before
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started - inner


@contextmanager
def paused() -> Iterator[None]:
    """Pause the cycle collector; of several threads inside, the one that found it running starts it again."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
