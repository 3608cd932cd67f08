"""Timings of every side for one kind of work."""

from dataclasses import dataclass
from typing import Any

from hybridlm.bench.sides import Timing


@dataclass(frozen=True)
class Measured:
    """Timings of every side for one number of lanes.

    Attributes:
        kind: "decode", "prefill" or "score".
        lanes: sequences at a time.
        tokens: tokens that each side computed in one timing.
        timings: timings of each side, ours first.
        floors: least seconds of each side on this machine; None where they are not known.
    """

    kind: str
    lanes: int
    tokens: int
    timings: list[Timing]
    floors: dict[str, float] | None = None

    def _seconds(self, side: str) -> float:
        return next(timing.seconds for timing in self.timings if timing.name == side)

    def speed(self, side: str) -> float:
        """Tokens in a second."""
        return self.tokens / self._seconds(side)

    def of_floor(self, side: str) -> float:
        """Fraction of the machine's limit that a side reaches."""
        assert self.floors is not None
        return self.floors[side] / self._seconds(side)

    def figures(self) -> dict[str, Any]:
        """Return everything as plain values."""
        rounds = {timing.name: timing.rounds for timing in self.timings}
        return {"what": self.kind, "lanes": self.lanes, "tokens": self.tokens, "seconds": rounds, "floors": self.floors}
