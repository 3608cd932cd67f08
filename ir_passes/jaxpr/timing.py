"""Seconds of each compilation phase, and a pause of Python's cycle collector."""

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
        start: clock to continue from; unchanged.
    """

    def __init__(self, start: "Clock | None" = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0) if start is None else dict(start.seconds)

    def time(self, phase: str, run: Callable[..., T], *args: Any, **options: Any) -> T:
        total_before, started = sum(self.seconds.values()), time.perf_counter()
        try:
            return run(*args, **options)
        finally:
            inner = sum(self.seconds.values()) - total_before
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started - inner


@contextmanager
def paused() -> Iterator[None]:
    """Pause the cycle collector: walking live objects takes a sixth of an analysis."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
