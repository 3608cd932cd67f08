"""Prompt log-probabilities with completions equal `LM.score`, whatever is cached or drafted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled import nan_token
from kept_states import empty_cache
from random_traffic import completed, finished

import hybridlm

CHUNK = 5
PROMPTS = [np.random.default_rng(i).integers(3, 90, i).tolist() for i in (1, CHUNK - 1, CHUNK, CHUNK + 1, 13)]


def wanted(lm: hybridlm.LM, prompts: list[list[int]], top: int) -> list[Any]:
    """Return the prompts' log-probabilities from scores."""
    results: list[Any] = []
    for score in lm.score(prompts, top_logprobs=top):
        tops = score.top_logprobs or [{}] * len(score.token_ids)
        rows = zip(score.token_ids, score.logprobs.tolist(), tops, strict=True)
        results.append([None, *[{**best, token: logprob} for token, logprob, best in rows][1:]])
    return results


@pytest.mark.parametrize("top", [0, 2])
def test_prompt_logprobs_match_scores(text_lm: hybridlm.LM, top: int) -> None:
    completions = text_lm.generate(PROMPTS, max_tokens=3, ignore_eos=True, prompt_logprobs=top)
    plain = text_lm.generate(PROMPTS, max_tokens=3, ignore_eos=True)
    assert [completion.prompt_logprobs for completion in completions] == wanted(text_lm, PROMPTS, top)
    assert [completion.token_ids for completion in completions] == [completion.token_ids for completion in plain]
    assert completions[0].prompt_logprobs == [None] and all(item.prompt_logprobs is None for item in plain)
    for entry, token in zip((completions[4].prompt_logprobs or [])[1:], PROMPTS[4][1:], strict=True):
        assert entry is not None and token in entry and len(entry) in (top, top + 1)
        values = list(entry.values())[:top]
        assert values == sorted(values, reverse=True)


@pytest.fixture
def with_cache(text_lm: hybridlm.LM) -> Iterator[None]:
    empty_cache(text_lm, "600kB")
    yield
    empty_cache(text_lm, None)


def test_cached_prefixes_and_drafts_drop_nothing(text_lm: hybridlm.LM, with_cache: None) -> None:
    engine, want = text_lm.engine, wanted(text_lm, PROMPTS, 2)
    settings: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True, "prompt_logprobs": 2}
    for _ in range(2):  # the second time from the cache
        assert [item.prompt_logprobs for item in text_lm.generate(PROMPTS, **settings)] == want
    assert engine.prefix_cache is not None and engine.prefix_cache.stats["prefix_hits"] > 0
    assert [item.prompt_logprobs for item in text_lm.generate(PROMPTS, speculate="ngram", **settings)] == want
    prefix = text_lm.prefix(PROMPTS[4][:7])
    (completion,) = text_lm.generate([PROMPTS[4][7:]], prefix=prefix, **settings)
    assert completion.prompt_token_ids == PROMPTS[4] and len(completion.prompt_logprobs or []) == 13


def test_several_completions_and_settings_of_each_prompt(text_lm: hybridlm.LM) -> None:
    initial = text_lm.stats["scored_tokens"]
    completions = text_lm.generate([PROMPTS[4]], n=3, temperature=1.0, max_tokens=2, seed=0, prompt_logprobs=0)
    assert text_lm.stats["scored_tokens"] - initial == 12, "equal prompts are read once"
    assert len({str(completion.prompt_logprobs) for completion in completions}) == 1
    first, second = text_lm.generate(PROMPTS[2:4], max_tokens=1, prompt_logprobs=[None, 1])
    assert first.prompt_logprobs is None and len(second.prompt_logprobs or []) == CHUNK + 1


def test_sessions(text_lm: hybridlm.LM) -> None:
    """A full context, a late request, and a request cancelled before its prompt is read."""
    full = np.random.default_rng(0).integers(3, 90, text_lm.context).tolist()
    results: dict[int, hybridlm.Completion] = {}
    with text_lm.session() as session:
        session.submit(PROMPTS[4], max_tokens=4, ignore_eos=True, prompt_logprobs=1)
        for _ in range(3):
            results |= completed(session)
        session.submit(full, prompt_logprobs=0)
        session.submit(PROMPTS[3], max_tokens=1, prompt_logprobs=1)
        session.submit(PROMPTS[3], max_tokens=1, prompt_logprobs=1)
        session.cancel(3)
        results |= finished(session)
    assert results[1].finish_reason == "length" and len(results[1].prompt_logprobs or []) == text_lm.context
    assert results[3].prompt_logprobs is None
    assert [len(results[i].prompt_logprobs or []) for i in (0, 2)] == [13, CHUNK + 1]


def test_a_prompt_without_finite_numbers_ends_its_request(text_lm: hybridlm.LM) -> None:
    with nan_token(text_lm), text_lm.session() as session:
        session.submit([5, 6, 7], prompt_logprobs=0, max_tokens=1)
        session.submit([5, 9, 7], prompt_logprobs=0, max_tokens=1)
        with pytest.raises(hybridlm.NumericalError, match=r"request 1"):
            while session.busy:
                session.step()
        assert set(session.errors) == {1}


def test_inconsistent_input_is_refused(text_lm: hybridlm.LM) -> None:
    for wrong in (-1, 1001, True, 1.5):
        with pytest.raises((TypeError, ValueError), match=r"prompt_logprobs: expected 0\.\."):
            text_lm.generate([[5]], prompt_logprobs=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompt_logprobs: expected None with interventions"):
        text_lm.generate([[5, 6]], interventions=[hybridlm.Intervention.ablate_head(1, 2)], prompt_logprobs=1)


def test_batch_files(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    prompt = "Ada has"
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": prompt, "max_tokens": 2, "prompt_logprobs": 1, "n": 2}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "prompt_logprobs": 0},
        ),
        ("/v1/completions", {"prompt": prompt, "max_tokens": 1}),
        ("/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "prompt_logprobs": 1}),
        ("/v1/completions", {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": -1}),
    ]
    lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, (url, body) in enumerate(bodies)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    text_lm.batch_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    rows = [json.loads(row) for row in (tmp_path / "out.jsonl").read_text().splitlines()]
    choices = rows[0]["response"]["body"]["choices"]
    ids = text_lm.tokenizer.encode(prompt)  # type: ignore[union-attr]  # it has one
    (want,) = wanted(text_lm, [ids], 1)
    for choice in choices:
        first, *entries = choice["prompt_logprobs"]
        assert first is None and len(entries) == len(ids) - 1
        for entry, expected in zip(entries, want[1:], strict=True):
            assert expected is not None and list(entry) == [str(token) for token in expected]
            assert [row["logprob"] for row in entry.values()] == pytest.approx(list(expected.values()), abs=1e-6)
            assert [row["rank"] for row in entry.values()] == [1, None][: len(entry)]
        assert entries[0][str(ids[1])]["decoded_token"] == "d"
    body = rows[1]["response"]["body"]
    assert body["prompt_logprobs"][0] is None and "prompt_logprobs" not in body["choices"][0]
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in json.dumps(rows[2])
    assert "prompt_logprobs: needs max_tokens" in rows[3]["error"]["message"]
    assert "prompt_logprobs: expected" in rows[4]["error"]["message"]
