"""Chosen ids, likely ids, ranks and entropy: against float64, in any batch, shared prefixes."""

from typing import Any

import numpy as np
import pytest
from comparison import log_softmax, padded

import hybridlm
from hybridlm import Score

TEXTS = ["a text over several chunks", "xy", "a text over several lines", "x", "Who has the kite?"]
IDS = [7, 50, 3, 88, 7]


def distributions(lm: hybridlm.LM, scores: list[Score], temperature: float = 1.0) -> list[np.ndarray]:
    """Float64 log-softmax before each token but the first: [T - 1, vocab] per text."""
    ids = [score.token_ids for score in scores]
    logs = log_softmax(np.asarray(lm.forward(padded(ids)).logits, np.float64) / temperature)
    return [rows[: len(item) - 1] for rows, item in zip(logs, ids, strict=True)]


def check_ranks(ranks: np.ndarray, ids: np.ndarray, logs: np.ndarray) -> None:
    """A rank counts the likelier tokens, except those that float32 does not tell apart."""
    for rank, token, row in zip(ranks, ids, logs, strict=True):
        assert (row > row[token] + 1e-4).sum() < rank <= (row > row[token] - 1e-4).sum() + 1


def same(item: Score, other: Score) -> bool:
    def arrays(score: Score) -> list[bytes]:
        results = [score.logprobs, score.ranks, score.entropy]
        for part in (score.top, score.chosen):
            assert part is not None
            results += [part.token_ids, part.logprobs, part.ranks, part.offsets]
        return [np.asarray(x).tobytes() for x in results]

    return arrays(item) == arrays(other)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_all_numbers_match_float64(text_lm: hybridlm.LM, temperature: float) -> None:
    scores = text_lm.score(TEXTS, token_ids=IDS, top=6, entropy=True, temperature=temperature)
    for score, logs in zip(scores, distributions(text_lm, scores, temperature), strict=True):
        count, tokens = len(logs), np.array(score.token_ids[1:], int)
        assert score.ranks is not None and score.entropy is not None and score.top and score.chosen is not None
        assert score.ranks[0] == 0 and np.isnan(score.entropy[0])
        np.testing.assert_allclose(score.logprobs[1:], logs[np.arange(count), tokens], atol=1e-4)
        np.testing.assert_allclose(score.entropy[1:], -(np.exp(logs) * logs).sum(-1), atol=1e-4)
        check_ranks(score.ranks[1:], tokens, logs)
        np.testing.assert_array_equal(score.greedy[1:], score.ranks[1:] == 1)
        assert score.top.offsets.tolist() == [0, *range(0, 6 * count + 1, 6)]
        assert score.chosen.offsets.tolist() == [0, *range(0, 5 * count + 1, 5)]
        assert score.chosen.token_ids.tolist() == IDS * count
        for part in (score.top, score.chosen):
            assert part.token_ids.dtype == part.ranks.dtype == np.int32 and part.logprobs.dtype == np.float32
            rows = np.repeat(logs, np.diff(part.offsets)[1:], axis=0)
            np.testing.assert_allclose(part.logprobs, rows[np.arange(len(rows)), part.token_ids], atol=1e-4)
            check_ranks(part.ranks, part.token_ids, rows)
        for row, ids in zip(logs, score.top.token_ids.reshape(count, 6), strict=True):
            np.testing.assert_allclose(row[ids], np.sort(row)[::-1][:6], atol=1e-4)
        assert score.top.ranks.tolist() == [1, 2, 3, 4, 5, 6] * count


def test_the_whole_vocabulary_has_every_rank_once(text_lm: hybridlm.LM) -> None:
    vocab = text_lm.config.vocab_size
    (score,) = text_lm.score([[5, 6, 7]], token_ids=np.arange(vocab), top=vocab)
    assert score.chosen is not None and score.top is not None
    for token in (1, 2):
        ids, logprobs, ranks = score.chosen.at(token)
        assert sorted(ranks.tolist()) == list(range(1, vocab + 1))
        best, values, _ = score.top.at(token)
        assert best.tolist() == ids[np.argsort(ranks)].tolist()
        assert values.tobytes() == logprobs[np.argsort(ranks)].tobytes()
    (listed,) = text_lm.score([[5, 6, 7]], top_logprobs=4)
    assert listed.top_logprobs == [
        {},
        *(dict(zip(*(x[:4].tolist() for x in score.top.at(i)[:2]), strict=True)) for i in (1, 2)),
    ]


def test_a_text_has_the_same_bits_alone_and_with_others(text_lm: hybridlm.LM) -> None:
    fields: dict[str, Any] = {"token_ids": IDS, "top": 6, "entropy": True, "temperature": 0.7}
    base = text_lm.score(TEXTS, **fields)
    other = text_lm.score(TEXTS[::-1] + ["and something else"] * 3, **fields)
    assert all(same(item, other[TEXTS[::-1].index(text)]) for text, item in zip(TEXTS, base, strict=True))


def test_ids_of_each_position_and_a_start(text_lm: hybridlm.LM) -> None:
    """Equal prefixes with equal requests are shared, others are not; numbers never change."""
    text = [int(i) for i in np.random.default_rng(1).integers(3, 90, 23)]
    texts = [[*text, 5], [*text, 6], [*text, 7], [*text, 8], [*text, 9]]
    wide = [[3, 4], [], [9]] * 8
    requests = [wide[:16], wide[:16], [[8]] * 16, [11, 12], wide[:16]]
    starts = [8, 8, 8, 8, 8]
    initial = text_lm.stats["prefix_tokens_saved"]
    scores = text_lm.score(texts, token_ids=requests, start=starts)
    # All five share the chunk without requests, three of them three more.
    assert text_lm.stats["prefix_tokens_saved"] - initial == 4 * 5 + 2 * 15
    logs = distributions(text_lm, scores)
    for i, score in enumerate(scores):
        each = requests[i] if isinstance(requests[i][0], list) else [requests[i]] * 16
        assert score.chosen is not None and score.entropy is None and score.top is None and score.ranks is not None
        assert np.diff(score.chosen.offsets).tolist() == [0] * 8 + [len(ids) for ids in each]
        assert (score.ranks[:8] == 0).all() and (score.ranks[8:] > 0).all()
        for place, ids in enumerate(each, 8):
            array, logprobs, ranks = score.chosen.at(place)
            assert array.tolist() == ids
            np.testing.assert_allclose(logprobs, logs[i][place - 1][ids], atol=1e-4)
            check_ranks(ranks, array, np.repeat(logs[i][[place - 1]], len(ids), axis=0))
        # Steps of the same shape, without another text of this beginning.
        single, *_ = text_lm.score([texts[i], [5, 6], [7, 8]], token_ids=[requests[i], [1, 2], []], start=[8, 0, 0])
        assert single.chosen is not None and single.chosen.logprobs.tobytes() == score.chosen.logprobs.tobytes()
        assert single.ranks is not None and single.ranks.tobytes() == score.ranks.tobytes()


def test_a_completion_and_a_prefix_count_from_their_own_first_token(text_lm: hybridlm.LM) -> None:
    full: list[int] = [5, 6, 7, 8, 9, 10, 11, 12]
    fields: dict[str, Any] = {"token_ids": [[[3], [4, 5]]], "start": 1, "top": 2, "entropy": True}
    (pair,) = text_lm.score([{"prompt": full[:5], "completion": full[5:]}], **fields)
    (final,) = text_lm.score([full[5:]], **fields, prefix=text_lm.prefix(full[:5]))
    fields["start"] = 6
    (text,) = text_lm.score([full], **fields)
    for score in (pair, final):
        assert score.chosen is not None and score.top is not None and text.chosen is not None
        assert score.entropy is not None and text.entropy is not None and score.ranks is not None
        assert score.chosen.offsets.tolist() == [0, 0, 1, 3] and score.top.offsets.tolist() == [0, 0, 2, 4]
        assert score.ranks[0] == 0 and len(score.entropy) == 3
        np.testing.assert_allclose(score.chosen.logprobs, text.chosen.logprobs, atol=1e-5)
        np.testing.assert_allclose(score.entropy[1:], text.entropy[6:], atol=1e-5)
        assert score.chosen.ranks.tolist() == text.chosen.ranks.tolist()


@pytest.mark.parametrize(("fields", "named"), [
    ({"token_ids": [[3], [4]]}, "token_ids"), ({"token_ids": [[[3], [4]]]}, r"token_ids\[0\]"),
    ({"token_ids": [-1]}, "token_ids"), ({"token_ids": [[[3], [1 << 30], [3]]]}, r"token_ids\[0\]\[1\]"),
    ({"token_ids": [["a"]]}, r"token_ids\[0\]"), ({"token_ids": "ab"}, "token_ids"), ({"top": -1}, "top"),
    ({"top": 1 << 20}, "top"), ({"temperature": 0.0}, "temperature"), ({"temperature": float("nan")}, "temperature"),
    ({"entropy": "no"}, "entropy"), ({"temperature": "1"}, "temperature"), ({"start": 1}, "start"),
    ({"start": 5, "top": 1}, "start"),
    ({"start": [1, 1], "top": 1}, "start"), ({"top_logprobs": 1, "top": 1}, "top_logprobs"),
])  # fmt: skip
def test_inconsistent_input_is_named(text_lm: hybridlm.LM, fields: dict[str, Any], named: str) -> None:
    steps = text_lm.stats["steps"]
    with pytest.raises((TypeError, ValueError), match=f"^{named}: "):
        text_lm.score([[5, 6, 7, 8]], **fields)
    assert text_lm.stats["steps"] == steps
