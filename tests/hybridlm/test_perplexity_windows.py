"""Windows of the rolling perplexity: every token counts once, as in lm_eval."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from hybridlm import Score
from hybridlm._perplexity import rolling, rolling_windows

PREFIX = 900
SIZES = [(length, size) for length in (*range(1, 14), 40) for size in (2, 3, 4, 5, 7, 13, 14, 64)]


def by_definition(tokens: list[int], most: int) -> Iterator[tuple[list[int], list[int]]]:
    """(context, tokens to predict) as lm_eval defines `loglikelihood_rolling` for a `max_length` of `most`.

    The first window predicts `most` tokens behind the prefix; each later one the next `most` tokens, or those that are
    left, from inputs that end with the last but one of them and are `most` long in any case.
    """
    first = min(most, len(tokens))
    yield [PREFIX], tokens[:first]
    done = first
    while done < len(tokens):
        count = min(most, len(tokens) - done)
        done += count
        inputs = tokens[done - 1 - most : done - 1]
        assert len(inputs) == most
        yield inputs[: most - (count - 1)], tokens[done - count : done]


@pytest.mark.parametrize(("length", "size"), SIZES)
def test_as_lm_eval(length: int, size: int) -> None:
    tokens = list(range(length))
    windows = rolling_windows(tokens, PREFIX, size)
    split = [(list(w.tokens[: -w.predicted]), list(w.tokens[-w.predicted :])) for w in windows]
    assert split == list(by_definition(tokens, size - 1))


@pytest.mark.parametrize(("length", "size"), SIZES)
def test_every_token_is_predicted_once(length: int, size: int) -> None:
    windows = rolling_windows(range(length), PREFIX, size)
    predicted = [token for window in windows for token in window.tokens[-window.predicted :]]
    assert predicted == list(range(length))
    assert all(window.predicted == size - 1 for window in windows[:-1])
    assert all(1 <= window.predicted < len(window.tokens) <= size for window in windows)
    assert all(len(window.tokens) == size for window in windows[1:])
    assert windows[0].tokens[0] == PREFIX


def test_an_empty_text_has_no_window() -> None:
    assert rolling_windows([], PREFIX, 4) == []


def fake_scores(windows: list[tuple[int, ...]]) -> list[Score]:
    """The log-probability of a token depends on how many stand before it in its window: (token + places) / -100."""
    return [
        Score(
            list(window),
            np.array([math.nan, *(-(token + place) / 100 for place, token in enumerate(window[1:], 1))], np.float32),
            np.zeros(len(window), bool),
            None,
        )
        for window in windows
    ]


def test_perplexity_of_several_texts() -> None:
    texts = [list(range(10, 20)), [30], [40, 41, 42]]
    total, count = 0.0, 0
    for text in texts:
        for context, targets in by_definition(text, 3):
            total += sum((token + place) / 100 for place, token in enumerate(targets, len(context)))
            count += len(targets)
    assert count == 14
    assert rolling(texts, PREFIX, 4, fake_scores) == pytest.approx(math.exp(total / count), rel=1e-6)


def test_a_context_of_one_token_predicts_nothing() -> None:
    with pytest.raises(ValueError, match="perplexity: needs a context of at least 2 tokens, got 1"):
        rolling([[1]], PREFIX, 1, fake_scores)
