"""How long steps take, measured as they run."""

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_TIMES = 9
MIN_TIMES = 3


class StepTimes:
    """The last few durations of every kind of step."""

    def __init__(self) -> None:
        self._seconds: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_TIMES))

    def start(self, step: Any) -> "StepTiming":
        """A step of this kind begins now."""
        return StepTiming(self._seconds[step])

    def measured(self, step: Any) -> bool:
        """Whether enough have been measured."""
        return len(self._seconds[step]) >= MIN_TIMES

    def min_seconds(self, step: Any) -> float:
        """Of the last ones, in seconds: what else the machine does makes steps slower, never faster.

        `measured` says whether there are any.
        """
        return min(self._seconds[step])


class StepTiming:
    """One step on its way; made by `StepTimes.start`."""

    def __init__(self, kept: deque[float]):
        self._kept, self._began = kept, time.perf_counter()

    def dispatched(self, output: Any) -> None:
        """The step has been dispatched; a small one has run by now."""
        if output.is_ready():
            self._kept.append(time.perf_counter() - self._began)

    @contextmanager
    def reading(self, output: Any, before: float) -> Iterator[None]:
        """The step is waited for and read; if it was done already, nobody knows since when, and it is not counted.

        Args:
            output: of the step.
            before: when the step before it had been read.
        """
        runs = not output.is_ready()
        yield
        if runs:
            self._kept.append(time.perf_counter() - max(self._began, before))
