"""Source lines of equations, for messages."""

import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from jax.extend import source_info_util as _source_info

MAX_FRAMES = 8
"""Bound on the source lines of an equation."""
_OWN = f"{Path(__file__).parents[1]}{os.sep}"


def source_of(eqn: Any) -> str:
    """Return the user's "file:line" of an equation, or "unknown"."""
    return next(iter(_frames(eqn.source_info.traceback, 1)), "unknown")


class _Called(_source_info.SourceInfo):
    """Source of an equation of an inlined call."""

    def __init__(self, source_info: Any, caller: Any):
        super().__init__(source_info.traceback, source_info.name_stack)
        self.caller = caller


def source_in_call(eqn: Any, caller: Any) -> Any:
    """Return the source of an equation of a call inlined at `caller`, if any."""
    if caller is None:
        return eqn.source_info
    return _Called(eqn.source_info, caller) if source_of(eqn) != "unknown" else caller


def frames_of(eqn: Any) -> tuple[str, ...]:
    """Return the user's "file:line"s of an equation, innermost first, then known callers."""
    places: list[str] = []
    info = eqn.source_info
    while info is not None:
        places += _frames(info.traceback, MAX_FRAMES)
        info = getattr(info, "caller", None)
    return tuple(dict.fromkeys(places))


@lru_cache(maxsize=4096)
def _frames(traceback: Any, count: int) -> tuple[str, ...]:
    """Return source lines outside JAX, flax and this package, else the innermost line."""
    info, places = _source_info.SourceInfo(traceback, _source_info.NameStack()), list[str]()
    for frames in sorted({count, MAX_FRAMES}):
        lines = _source_info.summarize(info, frames).splitlines()
        places = [match.group(1) for line in reversed(lines) if (match := re.match(r"(.*?:\d+)", line))]
        foreign = (_OWN, *(f"{path}{os.sep}" for path in getattr(sys.modules.get("flax"), "__path__", ())))
        users = [place for place in places if not place.startswith(foreign)]
        if users:
            return tuple(users[:count])
    return tuple(places[:1])
