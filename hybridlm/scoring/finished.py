"""Storage of finished texts for an interrupted run."""

from collections.abc import Callable, Mapping

import numpy as np

from hybridlm.files.finished import FinishedTexts
from hybridlm.scoring.text import QueuedText, T


class KeptTexts:
    """Finished texts of one call of the scorer.

    Args:
        finished: results of the part that the call belongs to.
    """

    def __init__(self, finished: FinishedTexts):
        self._finished, self._call = finished, finished.begin_call()

    def restored(self, texts: Mapping[int, tuple[int, ...]], make: Callable[[int], T]) -> dict[int, T]:
        """Return the finished texts of an earlier run, by number.

        Args:
            texts: token ids by number.
            make: number of a text -> the text without results.

        Raises:
            ValueError: the stored results are of other texts.
        """
        restored: dict[int, T] = {}
        for number in texts:
            text, wrong = make(number), np.full(1, -1, np.int64)
            if self._finished.restore(self._call, number, {**text.results(), "first_wrong": wrong}):
                text.first_wrong = None if wrong[0] < 0 else int(wrong[0])
                restored[number] = text
        self._finished.tokens += sum(len(tokens) - 1 for number, tokens in texts.items() if number not in restored)
        return restored

    def add(self, text: QueuedText) -> None:
        """Add the results of a finished text."""
        assert text.index is not None, "results of a shared prefix belong to its texts"
        wrong = np.full(1, -1 if text.first_wrong is None else text.first_wrong, np.int64)
        self._finished.add(self._call, text.index, {**text.results(), "first_wrong": wrong})
