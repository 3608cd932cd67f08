"""Sides of a benchmark: engines with equal numbers of sequences, measured in turns."""

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

import numpy as np

STEPS, START, MIXED = MODES = ("", "--start", "--mixed")
"""Measurements of `hybridlm bench` by flag, "" for decode steps."""


class Against(StrEnum):
    """Another engine on the same checkpoint."""

    TRANSFORMERS_BFLOAT16 = "transformers-bfloat16"
    TRANSFORMERS_FLOAT32 = "transformers-float32"
    LLAMA_CPP = "llama.cpp"
    LLAMA_SERVER = "llama-server"
    VLLM = "vllm"


class SideFailed(RuntimeError):
    """Another engine failed; with command, status and output."""


MAX_PRINTED = 2000
"""Last bytes of standard error in a message."""


def side_failure(reason: str, command: Sequence[str], stderr: bytes | IO[bytes]) -> SideFailed:
    if not isinstance(stderr, bytes):
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - MAX_PRINTED))
        stderr = stderr.read()
    printed = stderr[-MAX_PRINTED:].decode(errors="replace").strip() or "nothing on standard error"
    return SideFailed(f"{reason}; the command was: {' '.join(command)}; it printed: {printed}")


@dataclass(frozen=True)
class Timing:
    """Median seconds of each round."""

    name: str
    rounds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds)

    def ratio(self, other: "Timing") -> tuple[float, float, float]:
        """Return the speed-up over `other` in the same round: median, least, most."""
        ratios = [other_seconds / seconds for seconds, other_seconds in zip(self.rounds, other.rounds, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)

    def ratio_text(self, other: "Timing") -> str:
        """Return the speed-up over `other` for a table; empty for itself."""
        if other is self:
            return ""
        median, lowest, highest = self.ratio(other)
        return f"{median:.2f} ({lowest:.2f}-{highest:.2f})"


@dataclass(frozen=True)
class Measured:
    """Timings of every side for one number of lanes.

    Attributes:
        timings: ours first.
    """

    kind: str
    lanes: int
    tokens: int
    timings: list[Timing]
    floors: dict[str, float] | None = None

    def _seconds(self, side: str) -> float:
        return next(timing.seconds for timing in self.timings if timing.name == side)

    def speed(self, side: str) -> float:
        return self.tokens / self._seconds(side)

    def of_floor(self, side: str) -> float:
        assert self.floors is not None
        return self.floors[side] / self._seconds(side)

    def figures(self) -> dict[str, Any]:
        rounds = {timing.name: timing.rounds for timing in self.timings}
        return {"what": self.kind, "lanes": self.lanes, "tokens": self.tokens, "seconds": rounds, "floors": self.floors}


def in_turns(runs: Sequence[tuple[str, Callable[[], float]]], rounds: int, left_out: set[str]) -> list[Timing]:
    """Run all sides in each round (A B A B): other load affects all.

    Args:
        runs: name, and run that returns seconds.
        left_out: receives failed sides, which have no timing.
    """
    timed = [(name, run, list[float]()) for name, run in runs]
    for _ in range(rounds):
        for side in list(timed):
            name, run, times = side
            try:
                times.append(run())
            except SideFailed as failure:
                timed.remove(side)
                leave_out(name, failure, left_out)
    return [Timing(name, tuple(times)) for name, _, times in timed]


def leave_out(side: str, failure: SideFailed, left_out: set[str]) -> None:
    """Add a side that failed to a set, and print a line on standard error."""
    left_out.add(side)
    print(f"{side} is left out: {failure}", file=sys.stderr)


def random_tokens(lanes: int, tokens: int, vocab: int) -> np.ndarray:
    """Return random int32 [lanes, tokens], without the first, possibly special ids."""
    return np.random.default_rng(0).integers(min(8, vocab - 1), vocab, (lanes, tokens), np.int32)
