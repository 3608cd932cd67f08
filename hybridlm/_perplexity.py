"""Perplexity by named convention."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hybridlm._results import Score, perplexity
from hybridlm._tokenizer import Tokenizer

CONVENTIONS = ("rolling",)


class Window(NamedTuple):
    """Part of a text, of which the last tokens, `predicted` of them, count."""

    tokens: tuple[int, ...]
    predicted: int


def prefix_token(tokenizer: Tokenizer | None, eos_token_ids: Sequence[int]) -> int:
    """What stands before a text: the tokenizer's first token, else its end token, else the model's first end token.

    Raises:
        ValueError: there is neither.
    """
    named = [] if tokenizer is None else [tokenizer.bos_token_id, tokenizer.eos_token_id]
    found = [token for token in (*named, *eos_token_ids) if token is not None]
    if not found:
        raise ValueError("the model names no first or end token that could stand before a text")
    return found[0]


def rolling_windows(tokens: Sequence[int], prefix: int, size: int) -> list[Window]:
    """Windows that predict every token of a text once: the `loglikelihood_rolling` of lm_eval.

    A window predicts as many tokens as fit behind the last token of the window before. The last one has fewer left to
    predict; it is filled up with the text before them.

    Args:
        tokens: the text.
        prefix: stands before the first token.
        size: most tokens that a window holds, at least 2; lm_eval's `max_length` is one less.
    """
    whole = (prefix, *tokens)
    starts = range(0, len(tokens), size - 1)
    ends = [min(start + size, len(whole)) for start in starts]
    return [Window(whole[max(0, end - size) : end], end - start - 1) for start, end in zip(starts, ends, strict=True)]


def rolling(
    texts: Sequence[Sequence[int]], prefix: int, context: int, score: Callable[[list[tuple[int, ...]]], list[Score]]
) -> float:
    """exp of the mean negative log-probability over all tokens of all texts.

    Args:
        texts: token ids of each text.
        prefix: token that stands before each text.
        context: most tokens of a window.
        score: scores windows.

    Raises:
        ValueError: the context has no room for a token and the one that predicts it.
    """
    if context < 2:
        raise ValueError(f"perplexity: needs a context of at least 2 tokens, got {context}; load with a larger context")
    windows = [window for text in texts for window in rolling_windows(text, prefix, context)]
    scores = score([window.tokens for window in windows])
    counted = [one.logprobs[-window.predicted :] for one, window in zip(scores, windows, strict=True)]
    total = float(np.sum(np.concatenate(counted), dtype=np.float64))
    return perplexity(total, sum(len(text) for text in texts))
