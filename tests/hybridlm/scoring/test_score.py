"""Scores: exact against float64, whole vocabulary, chunk by chunk, with bounded memory."""

from pathlib import Path

import numpy as np
import pytest
from comparison import log_softmax, padded

import hybridlm


def test_perplexity_matches_the_windows(text_lm: hybridlm.LM) -> None:
    long = "abcdefgh " * 60
    ids = text_lm.tokenizer.encode(long)  # type: ignore[union-attr]  # it has one
    assert len(ids) > 2 * text_lm.context
    total, size = 0.0, text_lm.context
    full = [text_lm.eos_token_ids[0], *ids]
    for start in range(0, len(ids), size - 1):
        end = min(start + size, len(full))
        window = text_lm.score([full[max(0, end - size) : end]])[0]
        total += float(np.sum(window.logprobs[start + 1 - end :], dtype=np.float64))
    total += text_lm.score([[text_lm.eos_token_ids[0], *text_lm.tokenizer.encode("xyz")]])[0].sum_logprob  # type: ignore[union-attr]  # it has one
    assert text_lm.perplexity([long, "xyz"]) == pytest.approx(np.exp(-total / (len(ids) + 3)), rel=1e-6)
    with pytest.raises(ValueError, match="texts: is empty"):
        text_lm.perplexity([])


def test_one_token_has_nothing_to_predict_it(text_lm: hybridlm.LM) -> None:
    (score,) = text_lm.score([[5]])
    assert np.isnan(score.logprobs).tolist() == [True] and score.sum_logprob == 0 and score.perplexity is None


def test_perplexity_of_every_convention_matches_float64(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """Windows written out here, log-probabilities in float64 of the logits of `forward`."""
    text = "Who has the kite? Ada has it now."
    assert text_lm.tokenizer is not None
    ids, size, stride = text_lm.tokenizer.encode(text), 16, 6
    end = text_lm.eos_token_ids[0]
    # (tokens, the first place that counts)
    rolling = [([end, *ids[:15]], 1), (ids[14:30], 1), ([end, *ids][len(ids) + 1 - 16 :], 16 - (len(ids) - 30))]
    strided = [(ids[:16], 1), (ids[6:22], 10), (ids[12:28], 10), (ids[18:33], 10)]
    halves = [(ids[:16], 9), (ids[16:32], 9)]
    assert len(ids) == 33
    logits = np.asarray(text_lm.forward(padded([item for item, _ in rolling + strided + halves])).logits, np.float64)
    rows = iter(logits)
    (tmp_path / "corpus.txt").write_text(text)
    for convention, windows in (("rolling", rolling), ("strided", strided), ("llama.cpp", halves)):
        counted = []
        for tokens, first in windows:
            logprobs = log_softmax(next(rows))
            counted += [logprobs[place - 1, tokens[place]] for place in range(first, len(tokens))]
        assert len(counted) == {"rolling": 33, "strided": 32, "llama.cpp": 14}[convention]
        settings = {"stride": stride} if convention == "strided" else {}
        result = text_lm.perplexity([text], convention=convention, window=size, **settings)
        assert result == pytest.approx(np.exp(-np.mean(counted)), rel=1e-4)
        assert text_lm.perplexity(tmp_path / "corpus.txt", convention=convention, window=size, **settings) == result
    with pytest.raises(ValueError, match=r"corpus.txt' is the name of a file; give Path\("):
        text_lm.perplexity(str(tmp_path / "corpus.txt"))
    assert text_lm.perplexity([str(tmp_path / "corpus.txt")]) > 1, "in a list it is a text"
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    with pytest.raises(ValueError, match=r"latin.txt: expected a text file in UTF-8"):
        text_lm.perplexity([tmp_path / "latin.txt"])
