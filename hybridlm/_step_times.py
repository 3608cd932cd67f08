"""How long steps take, measured as they run."""

import statistics
import time
from collections import defaultdict, deque
from typing import Any

KEPT = 9
NEEDED = 3


class StepTimes:
    """The last few durations of every kind of step."""

    def __init__(self) -> None:
        self._seconds: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def begin(self, step: Any) -> "Timing":
        """A step of this kind begins now."""
        return Timing(self._seconds[step])

    def known(self, step: Any) -> bool:
        """Whether enough have been measured."""
        return len(self._seconds[step]) >= NEEDED

    def median(self, step: Any) -> float:
        """Of the last ones, in seconds; `known` says whether there are any."""
        return statistics.median(self._seconds[step])


class Timing:
    """One step on its way; made by `StepTimes.begin`."""

    def __init__(self, kept: deque[float]):
        self._kept, self._began = kept, time.perf_counter()

    def dispatched(self, output: Any) -> None:
        """The step has been dispatched; a small one has run by now."""
        if output.is_ready():
            self._kept.append(time.perf_counter() - self._began)

    def wait(self, output: Any) -> None:
        """Wait for the step; if it was done before, nobody knows for how long, and it is not counted."""
        if not output.is_ready():
            output.block_until_ready()
            self._kept.append(time.perf_counter() - self._began)
