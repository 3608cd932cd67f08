"""Step times, measured as steps run."""

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_TIMES = 9
MIN_TIMES = 3


class StepTimes:
    """Last durations by kind of step."""

    def __init__(self) -> None:
        self._seconds: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_TIMES))

    def start(self, step: Any) -> "StepTiming":
        return StepTiming(self._seconds[step])

    def measured(self, step: Any) -> bool:
        return len(self._seconds[step]) >= MIN_TIMES

    def min_seconds(self, step: Any) -> float:
        """Return the least of the last durations in seconds: other load makes steps slower."""
        return min(self._seconds[step])


class StepTiming:
    """Measurement of one step in flight; `seconds` is None until it ends."""

    def __init__(self, durations: deque[float]):
        self._kept, self._began = durations, time.perf_counter()
        self.seconds: float | None = None

    def dispatched(self, output: Any) -> None:
        """Record the dispatch; a small step may already have finished."""
        if output.is_ready():
            self.seconds = time.perf_counter() - self._began

    @contextmanager
    def reading(self, output: Any, previous_end: float) -> Iterator[None]:
        """Wait for the step and read it; a step that had finished is not counted.

        Args:
            previous_end: time after reading the previous step.
        """
        runs = not output.is_ready()
        yield
        if runs:
            self.seconds = time.perf_counter() - max(self._began, previous_end)

    def keep(self, seconds: float | None) -> None:
        if seconds is not None:
            self._kept.append(seconds)
