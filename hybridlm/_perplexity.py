"""Perplexity by named convention."""

from collections.abc import Callable, Sequence

import numpy as np

from hybridlm._results import Score, perplexity

CONVENTIONS = ("rolling",)


def rolling_windows(tokens: Sequence[int], prefix: int, size: int) -> list[tuple[int, ...]]:
    """Disjoint windows that predict every token of a text once.

    Args:
        tokens: the text.
        prefix: stands before the first token.
        size: tokens that a window holds, the one before its first prediction included.
    """
    whole = (prefix, *tokens)
    return [tuple(whole[start : start + size]) for start in range(0, len(tokens), size - 1)]


def rolling(
    texts: Sequence[Sequence[int]], prefix: int, context: int, score: Callable[[list[tuple[int, ...]]], list[Score]]
) -> float:
    """exp of the mean negative log-probability over all tokens of all texts.

    Args:
        texts: token ids of each text.
        prefix: token that stands before each text.
        context: most tokens of a window.
        score: scores windows.
    """
    windows = [window for text in texts for window in rolling_windows(text, prefix, context)]
    scores = score(windows)
    total = float(np.sum([one.sum_logprob for one in scores], dtype=np.float64))
    return perplexity(total, sum(len(text) for text in texts))
