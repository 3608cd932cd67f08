"""Seconds of each compilation phase, without Python's cycle collector.

An analysis makes many live objects; walking them takes the collector a sixth of the time.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

PHASES = ("trace", "prove", "rewrite", "lower", "compile", "audit")
T = TypeVar("T")


class Clock:
    """Seconds of each phase, without nested phases.

    Args:
        start: to continue from; unchanged.

    Attributes:
        seconds: by phase, of `PHASES` and others.
    """

    def __init__(self, start: "Clock | None" = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0) if start is None else dict(start.seconds)

    def time(self, phase: str, run: Callable[..., T], *args: Any, **options: Any) -> T:
        """Return `run(*args, **options)` and add its seconds to the phase."""
        total_before, started = sum(self.seconds.values()), time.perf_counter()
        try:
            return run(*args, **options)
        finally:
            inner = sum(self.seconds.values()) - total_before
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started - inner


@contextmanager
def paused() -> Iterator[None]:
    """Pause the cycle collector; the thread that found it running restarts it."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
