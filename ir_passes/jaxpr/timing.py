"""Seconds of each compilation phase, and a pause of Python's cycle collector."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

PHASES = ("trace", "prove", "rewrite", "lower", "compile", "audit")
T = TypeVar("T")


Timings = dict[str, float]
"""Seconds of each phase."""


def new_seconds() -> Timings:
    return dict.fromkeys(PHASES, 0.0)


def timed(seconds: Timings, phase: str, run: Callable[..., T], *args: Any, **options: Any) -> T:
    """Run a function; add its time to a phase, without phases inside it."""
    total_before, started = sum(seconds.values()), time.perf_counter()
    try:
        return run(*args, **options)
    finally:
        inner = sum(seconds.values()) - total_before
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - started - inner


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
