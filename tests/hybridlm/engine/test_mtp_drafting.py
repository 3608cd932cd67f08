"""Drafts of the model's own head: the same tokens as without, right ones accepted, and what cannot be drafted."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from head_checkpoints import GOLDEN, write_agreeing, write_headless

import hybridlm
from hybridlm import CheckpointError, Completion, ConfigError
from hybridlm.engine.speculation import Speculation

LOADED: dict[str, Any] = {"lanes": 3, "context": 150, "dtype": "float32", "chunk": 16, "draft_tokens": 3}
SETTINGS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
SAMPLED: dict[str, Any] = SETTINGS | {"temperature": 0.8, "top_k": 40, "seed": 5, "n": 2}
PROMPTS = [np.random.default_rng(n).integers(3, 93, size=n).tolist() for n in (5, 1, 17, 40, 130, 145)]


@pytest.fixture(scope="module")
def ordinary() -> hybridlm.LM:
    return hybridlm.load(GOLDEN, speculate="mtp", **LOADED)


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    return hybridlm.load(write_agreeing(tmp_path_factory.mktemp("agreeing")), speculate="mtp", **LOADED)


def drafted(lm: hybridlm.LM, prompts: Sequence[Any], **settings: Any) -> tuple[list[Completion], dict[str, int]]:
    """Completions with drafts, after checking that those without are the same, and what was counted meanwhile."""
    want, stats = lm.generate(prompts, speculate=None, **settings), lm.stats
    completions, new_stats = lm.generate(prompts, **settings), lm.stats
    for completion, other in zip(completions, want, strict=True):
        assert (completion.token_ids, completion.finish_reason) == (other.token_ids, other.finish_reason)
    return completions, {name: new_stats[name] - stats[name] for name in new_stats}


@pytest.mark.long
@pytest.mark.parametrize("settings", [SETTINGS, SAMPLED])
def test_all_drafts_of_a_head_that_agrees_are_accepted(
    agreeing: hybridlm.LM, always: None, settings: dict[str, Any]
) -> None:
    """Acceptance with a temperature too: drafts are sampled with the same noise as the tokens in their places."""
    completions, counted = drafted(agreeing, PROMPTS, **settings)
    assert counted["accepted_tokens"] == counted["drafted_tokens"] > 0
    # one token from the prompt, one with the first drafts, then four at a time
    longest = max(len(completion.token_ids) for completion in completions)
    assert counted["verify_steps"] <= len(completions) / 3 * (longest / 4 + 3)


@pytest.mark.long
def test_a_prefix_carries_what_the_head_needs(agreeing: hybridlm.LM, always: None, tmp_path: pathlib.Path) -> None:
    """Forked and read from a file: the head's keys and values and the hidden state lie in the snapshot."""
    text = PROMPTS[3]
    want = agreeing.generate([text], **SETTINGS)[0].token_ids
    prefix = agreeing.prefix(text[:23])
    prefix.save(tmp_path / "prefix.safetensors")
    for stored in (prefix, agreeing.load_prefix(tmp_path / "prefix.safetensors")):
        stats = agreeing.stats
        completions = agreeing.generate([text[23:]] * 2, prefix=stored, **SETTINGS)
        assert [each.token_ids for each in completions] == [want] * 2
        assert agreeing.stats["accepted_tokens"] - stats["accepted_tokens"] > 20


@pytest.mark.long
def test_the_head_of_a_prefix_sees_all_of_it(ordinary: hybridlm.LM, always: None) -> None:
    """Drafts after a fork are those after the whole prompt: as many are right."""
    text = PROMPTS[4]
    counts = []
    for prompt, prefix in ((text, None), (text[61:], ordinary.prefix(text[:61]))):
        accepted = ordinary.stats["accepted_tokens"]
        ordinary.generate([prompt], prefix=prefix, n=8, temperature=1.5, seed=3, max_tokens=19)
        counts.append(ordinary.stats["accepted_tokens"] - accepted)
    assert counts[0] == counts[1] > 0


@pytest.mark.long
def test_cached_states_of_prompts(agreeing: hybridlm.LM, always: None) -> None:
    """The row of a pair lies at the position before its token's: after a kept state it is written anew."""
    lm = hybridlm.load(agreeing.path, speculate="mtp", prefix_cache="64MB", **LOADED)
    begin = PROMPTS[4]
    prompts = [begin, [*begin[:100], *PROMPTS[2]], [*begin[:64], 9], begin]
    for _ in range(2):
        for prompt in prompts:
            stats = lm.stats
            (completion,) = lm.generate([prompt], **SETTINGS)
            counted = {name: count - stats[name] for name, count in lm.stats.items()}
            assert completion.token_ids == agreeing.generate([prompt], speculate=None, **SETTINGS)[0].token_ids
            assert counted["accepted_tokens"] == counted["drafted_tokens"] > 0
    assert counted["prefix_hits"] == 1 and counted["prefix_tokens_saved"] > 50


@pytest.mark.long
def test_scores_are_those_of_the_model_without_a_head(ordinary: hybridlm.LM) -> None:
    plain = hybridlm.load(GOLDEN, **LOADED)
    for score, other in zip(ordinary.score(PROMPTS), plain.score(PROMPTS), strict=True):
        np.testing.assert_allclose(score.logprobs, other.logprobs, atol=1e-4)
    with pytest.raises(ValueError, match=r"hybridlm.load\(..., speculate='mtp'\)"):
        plain.generate(PROMPTS, speculate="mtp")


@pytest.mark.long
def test_a_head_is_asked_as_long_as_it_pays(
    ordinary: hybridlm.LM, agreeing: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifying step costs as much as three sampling ones; other runs start with the head's rate so far."""
    monkeypatch.setattr(Speculation, "cost", lambda self, lanes: 3.0)
    monkeypatch.setattr("hybridlm.drafting.step_times.StepTimes.measured", lambda self, step: True)
    for lm in (ordinary, agreeing):
        monkeypatch.setattr(lm.engine, "_mtp_prior", type(lm.engine._mtp_prior)(0.9))
    _, counted = drafted(ordinary, PROMPTS, **SETTINGS)
    assert 0 < counted["verify_steps"] <= 2 * len(PROMPTS) and counted["speculation_pauses"]
    _, counted = drafted(ordinary, PROMPTS[:4], **SETTINGS)
    assert not counted["verify_steps"]
    for _ in range(2):
        _, counted = drafted(agreeing, PROMPTS, **SETTINGS)
        assert counted["accepted_tokens"] == counted["drafted_tokens"] > 60


@pytest.mark.long
def test_whose_rows_a_lane_finds(always: None) -> None:
    lm = hybridlm.load(GOLDEN, speculate="mtp", sanitize=True, **{**LOADED, "lanes": 2})
    drafted(lm, PROMPTS[:4], **SETTINGS)


def test_what_has_no_head_is_refused(root: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Before any weight is read, with what to do."""
    with pytest.raises(ValueError, match=r"none is implemented for family lfm2 \(for qwen.* speculate='ngram'"):
        hybridlm.load(root / "tests/golden/lfm2_base", speculate="mtp")
    without = write_headless(tmp_path_factory.mktemp("without"))
    with pytest.raises(CheckpointError, match=r"no tensor is named mtp(.|\n)*speculate='ngram' needs no head"):
        hybridlm.load(without, speculate="mtp")
    none = write_headless(tmp_path_factory.mktemp("none"), mtp_num_hidden_layers=0)
    with pytest.raises(ConfigError, match="mtp_num_hidden_layers: expected one of 1"):
        hybridlm.load(none, speculate="mtp")
