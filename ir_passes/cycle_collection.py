"""Pausing Python's cycle collector while an analysis makes many small objects, none of them garbage.

It would walk all of them again and again, which is a sixth of the time of an analysis.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No cycles are collected inside; of several threads inside, the one that found it running starts it again."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
