"""Windows of the rolling perplexity: every token counts once, as in lm_eval."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from hybridlm import Score
from hybridlm.scoring.perplexity import (
    corpus_perplexity,
    rolling_windows,
    second_half_windows,
    strided_windows,
    windows_of,
)

PREFIX = 900
LENGTHS = (*range(1, 14), 40)
SIZES = pytest.mark.parametrize("size", (2, 3, 4, 5, 7, 13, 14, 64))


def by_definition(tokens: list[int], limit: int) -> Iterator[tuple[list[int], list[int]]]:
    """(context, tokens to predict) as lm_eval defines `loglikelihood_rolling` for a `max_length` of `most`.

    The first window predicts `most` tokens after the prefix; each later one the next `most` tokens, or those that are
    left, from inputs that end with the last but one of them and are `most` long in any case.
    """
    first = min(limit, len(tokens))
    yield [PREFIX], tokens[:first]
    results = first
    while results < len(tokens):
        count = min(limit, len(tokens) - results)
        results += count
        inputs = tokens[results - 1 - limit : results - 1]
        assert len(inputs) == limit
        yield inputs[: limit - (count - 1)], tokens[results - count : results]


@SIZES
def test_as_lm_eval(size: int) -> None:
    for length in LENGTHS:
        tokens = list(range(length))
        windows = rolling_windows(tokens, PREFIX, size)
        split = [(list(w[0][: -w[1]]), list(w[0][-w[1] :])) for w in windows]
        assert split == list(by_definition(tokens, size - 1))


def fake_scores(windows: list[tuple[int, ...]]) -> list[Score]:
    """Return log-probabilities (token + places) / -100, by place within the window."""
    return [
        Score(
            list(window),
            np.array([math.nan, *(-(token + place) / 100 for place, token in enumerate(window[1:], 1))], np.float32),
            np.zeros(len(window), bool),
            None,
        )
        for window in windows
    ]


@SIZES
def test_strided_as_in_the_documentation_of_transformers(size: int) -> None:
    """Labels count unless -100 or first in their window."""
    for length in LENGTHS:
        for stride in {1, size // 2, size - 1, size} - {0}:
            want, previous = [], 0
            for begin in range(0, length, stride):
                end = min(begin + size, length)
                labels = [token if place >= begin + (end - begin) - (end - previous) else -100
                          for place, token in enumerate(range(begin, end), begin)]  # fmt: skip
                want += [(token, token - begin) for token in labels[1:] if token != -100]
                previous = end
                if end == length:
                    break
            results = [
                (token, window[0].index(token))
                for window in strided_windows(range(length), size, stride)
                for token in window[0][-window[1] :]
            ]
            assert results == want
            if stride < size:
                assert [token for token, _ in results] == list(range(1, length))


@SIZES
def test_second_halves_as_in_llama_cpp(size: int) -> None:
    """llama-perplexity's rule: logits from `n_ctx / 2` on, except the last, predict tokens."""
    for length in LENGTHS:
        windows = second_half_windows(range(length), size, None)
        out = [(token, place) for w in windows for place, token in enumerate(w[0]) if place >= size - w[1]]
        want = []
        for chunk in range(length // size):
            for place in range(size // 2, size - 1):
                want.append((chunk * size + place + 1, place + 1))
        assert out == want
        for plain, begun in zip(windows, second_half_windows(range(length), size, PREFIX), strict=True):
            assert begun == ((PREFIX, *plain[0][1:]), plain[1])


@pytest.mark.parametrize(("settings", "message"), [
    (("rolled", 8, None, None), "convention: expected one of rolling, strided, llama.cpp, got 'rolled'"),
    (("rolling", 1, None, None), "perplexity: needs a context of at least 2 tokens, got 1"),
    (("strided", 8, 9, None), "window: expected 2..8, got 9"),
    (("strided", 8, None, 0), "stride: expected 1..8, the window, got 0"),
    (("rolling", 8, None, 4), 'stride: .*"strided", got 4'),
    (("rolling", 8, None, None), "no BOS or EOS token"),
])  # fmt: skip
def test_windows_that_cannot_be(settings: tuple[str, int, int | None, int | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        windows_of(*settings, None, [])


def test_nothing_that_counts() -> None:
    with pytest.raises(ValueError, match="too short"):
        corpus_perplexity([], fake_scores, batch_size=4)
