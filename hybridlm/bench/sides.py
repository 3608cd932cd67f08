"""Sides of a benchmark: engines with equal numbers of sequences, measured in turns."""

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Protocol, TypeVar

import numpy as np


class SideFailed(RuntimeError):
    """Another engine failed: the message has its command, status and output."""


MAX_PRINTED = 2000
"""Last bytes of standard error in a message."""


def side_failure(reason: str, command: Sequence[str], stderr: bytes | IO[bytes]) -> SideFailed:
    """Return the error of a process: reason, command and the end of its standard error.

    Args:
        reason: the failure, with the status or signal of a process that ended.
        command: program and arguments.
        stderr: standard error, or the file that the process writes it to.
    """
    if not isinstance(stderr, bytes):
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - MAX_PRINTED))
        stderr = stderr.read()
    printed = stderr[-MAX_PRINTED:].decode(errors="replace").strip() or "nothing on standard error"
    return SideFailed(f"{reason}; the command was: {' '.join(command)}; it printed: {printed}")


class NamedSide(Protocol):
    """An engine with a name in tables."""

    @property
    def name(self) -> str:
        """Name of the engine in a table, unique where possible."""
        ...


S = TypeVar("S", bound=NamedSide)


class Side(Protocol):
    """One engine with a checkpoint, a number of sequences and a prompt length, warmed up.

    Another engine than ours raises `SideFailed` where it cannot be measured.
    """

    name: str

    def decode(self, steps: int) -> list[float]:
        """Return the seconds of each step of one token per sequence, or their mean.

        Their sum is the time from the begin to the last token on the host.
        """
        ...

    def prefill(self, tokens: int) -> float:
        """Return the seconds to prefill new prompts of `tokens` tokens, one per sequence."""
        ...


class LeftOut:
    """Sides that failed; a line on standard error names each.

    Attributes:
        names: names of the sides.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, side: str, failure: SideFailed) -> None:
        """Leave out a side."""
        self.names.add(side)
        print(f"{side} is left out: {failure}", file=sys.stderr)


@dataclass(frozen=True)
class Timing:
    """Median seconds of each round of one side."""

    name: str
    rounds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median seconds over the rounds."""
        return statistics.median(self.rounds)

    def ratio(self, other: "Timing") -> tuple[float, float, float]:
        """Return the speed-up over `other` in the same round: median, least, most."""
        ratios = [other_seconds / seconds for seconds, other_seconds in zip(self.rounds, other.rounds, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)

    def ratio_text(self, other: "Timing") -> str:
        """Return the speed-up over `other` for a table; empty for this side itself."""
        if other is self:
            return ""
        median, lowest, highest = self.ratio(other)
        return f"{median:.2f} ({lowest:.2f}-{highest:.2f})"


def in_turns(
    sides: Sequence[S],
    measure: Callable[[S], float],
    rounds: int,
    left_out: Callable[[str, SideFailed], None] | None = None,
) -> list[Timing]:
    """Measure every side once in each round (A B A B).

    Other load of the machine affects all sides in this way.

    Args:
        left_out: receives a side that fails, which has no further turn and no timing; without it,
            a failure is raised.
    """
    timed = [(side, list[float]()) for side in sides]
    for _ in range(rounds):
        for entry in list(timed):
            side, times = entry
            try:
                times.append(measure(side))
            except SideFailed as failure:
                if left_out is None:
                    raise
                timed.remove(entry)
                left_out(side.name, failure)
    return [Timing(side.name, tuple(times)) for side, times in timed]


def random_tokens(lanes: int, tokens: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Return random tokens, int32 [lanes, tokens], without the first, possibly special ids."""
    return np.random.default_rng(seed).integers(min(8, vocab - 1), vocab, (lanes, tokens), np.int32)
