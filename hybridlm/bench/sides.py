"""Sides of a benchmark: engines that decode and prefill the same number of sequences, in turns."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Side(Protocol):
    """One engine with a checkpoint, a number of sequences and a prompt length, warmed up."""

    name: str

    def decode(self, steps: int) -> list[float]:
        """Return the seconds of each of `steps` steps that generate one token per sequence (or their mean, once).

        Their sum is the time from the begin to the last token on the host.
        """
        ...

    def prefill(self, tokens: int) -> float:
        """Return the seconds to prefill new prompts of `tokens` tokens, one per sequence."""
        ...


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
        ratios = [theirs / ours for ours, theirs in zip(self.rounds, other.rounds, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)


def in_turns(sides: Sequence[Side], measure: Callable[[Side], float], rounds: int) -> list[Timing]:
    """Measure every side once in each round (A B A B), so that other load of the machine affects all of them."""
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for times, side in zip(found, sides, strict=True):
            times.append(measure(side))
    return [Timing(side.name, tuple(times)) for side, times in zip(sides, found, strict=True)]


def random_tokens(lanes: int, tokens: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Return random tokens, int32 [lanes, tokens], without the first ids, which may be special."""
    return np.random.default_rng(seed).integers(min(8, vocab - 1), vocab, (lanes, tokens), np.int32)
