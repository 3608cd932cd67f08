"""Counts of steps and tokens, in total and by thread."""

import threading
from collections import Counter
from collections.abc import Iterable


class Tallies(Counter[str]):
    """Counts since loading; each is also counted for the thread that adds it."""

    def __init__(self, names: Iterable[str] = ()):
        super().__init__(dict.fromkeys(names, 0))
        self._threads = threading.local()

    @property
    def of_thread(self) -> Counter[str]:
        """Counts that this thread has added; other threads may read them."""
        counts = getattr(self._threads, "counts", None)
        if counts is None:
            counts = self._threads.counts = Counter[str]()
        return counts

    def add(self, name: str, count: int = 1) -> None:
        self[name] += count
        self.of_thread[name] += count
