"""Widths of scoring steps depend on the text alone and leave little padding."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_engine import ReadingEngine, read_without_model

import hybridlm
from hybridlm.engine.widths import next_width, step_widths, text_widths

CPU = step_widths(128, "cpu")
WIDTHS = st.sampled_from([(1,), (5,), (20, 5), (100, 32, 8), CPU, step_widths(128, "cuda")])
LANES = 4


def test_widths_of_platforms() -> None:
    assert CPU == (128, 32, 8) and step_widths(128, "cuda") == step_widths(128, "tpu") == (128, 64)
    assert step_widths(8, "cpu") == (8,) and step_widths(5, "cpu") == (5,) and step_widths(100, "cpu") == (100, 32, 8)


def test_widths_of_a_text() -> None:
    widths = {count: list(text_widths(count, CPU)) for count in (0, 1, 8, 9, 42, 121, 128, 129, 300)}
    assert widths == {
        0: [], 1: [8], 8: [8], 9: [8, 8], 42: [32, 8, 8], 121: [128], 128: [128], 129: [128, 8],
        300: [128, 128, 32, 8, 8],
    }  # fmt: skip


@given(st.integers(1, 400), WIDTHS)
@settings(max_examples=60)
def test_a_beginning_of_whole_steps_has_the_same_widths(count: int, widths: tuple[int, ...]) -> None:
    steps = list(text_widths(count, widths))
    assert steps == sorted(steps, reverse=True) and sum(steps[:-1]) < count <= sum(steps)
    if len(widths) > 1 and widths[0] % widths[-1] == 0:
        assert sum(steps) - count < widths[-1], "less padding than the narrowest step"
    for i in range(1, len(steps)):
        assert list(text_widths(sum(steps[:i]), widths)) == steps[:i]
        assert next_width(count - sum(steps[:i]), widths) == steps[i]


def lengths(count: int, mean: float, sigma: float, limit: int = 2048) -> list[int]:
    """Return log-normal numbers of tokens with about this mean."""
    values = np.random.default_rng(count).lognormal(0, sigma, count)
    return np.clip(values * mean / values.mean(), 2, limit).astype(int).tolist()


def token_share(counts: Sequence[int], widths: tuple[int, ...]) -> float:
    """Return the share of real tokens among step places, without a model."""
    engine = ReadingEngine(8, LANES, widths)
    texts = {i: tuple(range(i, i + count)) for i, count in enumerate(counts)}
    finished = [
        text.index for _, texts in read_without_model(engine, texts, 0) for text in texts if text.index is not None
    ]
    assert sorted(finished) == list(range(len(counts)))
    return engine.tokens / engine.places


@pytest.mark.parametrize(
    ("counts", "smallest"),
    [
        (lengths(2000, 43, 0.7), 0.9),
        (lengths(2000, 43, 1.0), 0.87),
        (lengths(400, 43, 0.7), 0.8),
        (lengths(1000, 300, 0.8), 0.95),
        ([140] * 40, 0.95),
        ([2048] * 3, 0.74),  # one lane is idle
    ],
)
def test_most_places_hold_tokens(counts: list[int], smallest: float) -> None:
    share = token_share(counts, CPU)
    assert share >= smallest
    if max(counts) < 2048:
        assert share > token_share(counts, (128,)), "more than with one width"


def ragged(count: int) -> list[list[int]]:
    """Return texts of 2 to 60 tokens, some with common prefixes."""
    rng = np.random.default_rng(0)
    stem = rng.integers(3, 90, 40).tolist()
    return [
        [*(stem if i % 3 == 0 else []), *rng.integers(3, 90, int(rng.integers(2, 60 - 40 * (i % 3 == 0)))).tolist()]
        for i in range(count)
    ]


@pytest.fixture
def two_widths(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> hybridlm.LM:
    """A model with scoring steps of 20 and 5 tokens."""
    monkeypatch.setattr(text_lm.engine, "widths", (20, 5))
    return text_lm


def test_scores_keep_their_bits_in_any_order_and_company(two_widths: hybridlm.LM) -> None:
    texts = ragged(24)
    scores = two_widths.score(texts)
    order = np.random.default_rng(1).permutation(len(texts)).tolist()
    shuffled = two_widths.score([texts[i] for i in order])
    assert [score.logprobs.tobytes() for score in shuffled] == [scores[i].logprobs.tobytes() for i in order]
    for i in range(0, 24, 5):
        small = two_widths.score([[5, 6], texts[i], [7] * 33])[1]
        assert small.logprobs.tobytes() == scores[i].logprobs.tobytes(), i
    vectors = two_widths.embed(texts, pooling="mean")
    assert two_widths.embed([texts[i] for i in order], pooling="mean").tobytes() == vectors[order].tobytes()


def test_scores_of_two_widths_match_one(two_widths: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ragged(9)
    scores = two_widths.score(texts)
    assert two_widths.engine.shape("score", 3, 20, top=0) in two_widths.engine.programs.shapes
    monkeypatch.setattr(two_widths.engine, "widths", (5,))
    for score, other in zip(scores, two_widths.score(texts), strict=True):
        np.testing.assert_allclose(score.logprobs[1:], other.logprobs[1:], atol=1e-4)


def test_forward_has_the_bits_of_scores(two_widths: hybridlm.LM) -> None:
    """The last, unscored token fits into a step (22, 40) or adds one (21, 41)."""
    for count in (21, 22, 40, 41):
        texts = np.random.default_rng(count).integers(3, 90, (3, count))
        scores = two_widths.score(texts.tolist())
        logprobs = np.asarray(two_widths.forward(texts).logprobs)
        assert [score.logprobs[1:].tobytes() for score in scores] == [row.tobytes() for row in logprobs]


def test_the_default_has_several_widths_and_a_chunk_one(text_lm: hybridlm.LM) -> None:
    assert text_lm.engine.widths == (5,)
    lm = hybridlm.load(text_lm.path, lanes=3, context=256, dtype="float32", compilation_cache=False)
    assert lm.engine.chunk == 128 and lm.engine.widths == (128, 32, 8)
