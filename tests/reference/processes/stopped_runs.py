"""Runs over a file that are stopped between two parts."""

from collections.abc import Callable
from typing import Any

import pytest

from hybridlm.files.parts import Parts


def interrupt() -> None:
    """Stop a run as Ctrl-C does."""
    raise KeyboardInterrupt


def stop_after_parts(patch: pytest.MonkeyPatch, parts: int = 1, act: Callable[[], Any] = interrupt) -> None:
    """Act when so many parts of a run are written, and after each further one; with 0 in place of the first."""
    add, written = Parts.add, [0]

    def added(self: Parts, *args: Any, **options: Any) -> None:
        if parts:
            add(self, *args, **options)
        written[0] += 1
        if written[0] >= parts:
            act()

    patch.setattr(Parts, "add", added)
