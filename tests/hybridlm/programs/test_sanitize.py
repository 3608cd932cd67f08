"""`load(sanitize=True)`: right runs pass with the same tokens; test_engine_mutants.py has wrong runs."""

import dataclasses
from typing import Any, NamedTuple

import pytest
from jax import Array
from patched_functions import plant_fault

import hybridlm
from hybridlm.compiler.sanitizer import SanitizerError
from hybridlm.programs.sanitized import Sanitizer

PROMPTS = ["Ada", "a longer prompt of many letters", "b", "chunk", "six___"]
FREE: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}


@pytest.mark.slow
def test_right_runs_pass(text_lm: hybridlm.LM, sanitized_lm: hybridlm.LM) -> None:
    """Twice, so that rows are reused; scoring between."""
    want = text_lm.generate(PROMPTS, **FREE)
    scores = text_lm.score(PROMPTS)
    for _ in range(2):
        assert [c.token_ids for c in sanitized_lm.generate(PROMPTS, **FREE)] == [c.token_ids for c in want]
        for got, expected in zip(sanitized_lm.score(PROMPTS), scores, strict=True):
            assert got.logprobs[1:] == pytest.approx(expected.logprobs[1:], abs=1e-4)
    assert isinstance(sanitized_lm.engine.runner, Sanitizer) and sanitized_lm.engine.runner.steps > 20


class Past(NamedTuple):
    """A cache with field names of a user's layer."""

    history: Any
    read: Any


@pytest.mark.slow
def test_caches_with_other_names_are_masked(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old positions of a reused row are masked, whatever a layer names its cache."""
    caches = list[Any]()

    def renamed(state_arrays: Any) -> Any:
        return lambda self: Past(*(caches.append(state_arrays(self)) or caches[-1]))

    def attending(call: Any) -> Any:
        def attend(self: Any, x: Array, info: Any, state: Past) -> tuple[Array, Past]:
            y, cache = call(self, x, info, type(caches[0])(*state))
            return y, Past(*cache)

        return attend

    plant_fault(monkeypatch, "models.mixers.attention.Attention.state_arrays", renamed)
    plant_fault(monkeypatch, "models.mixers.attention.Attention.__call__", attending)
    lm = hybridlm.load(text_lm.path, sanitize=True, lanes=1, context=256, chunk=5)
    prompts = PROMPTS[1:3]
    completions = [lm.generate(prompt, **FREE)[0].token_ids for prompt in prompts]
    monkeypatch.undo()
    assert completions == [completion.token_ids for completion in text_lm.generate(prompts, **FREE)]
    assert isinstance(lm.engine.runner, Sanitizer) and lm.engine.runner.steps > 8


@pytest.mark.long
def test_one_sequence_alone(text_lm: hybridlm.LM, sanitized_lm: hybridlm.LM) -> None:
    assert sanitized_lm.generate("Ada", **FREE)[0].token_ids == text_lm.generate("Ada", **FREE)[0].token_ids


@pytest.mark.long
def test_prefixes_and_common_parts_are_followed(text_lm: hybridlm.LM, sanitized_lm: hybridlm.LM) -> None:
    """Labels move with continued states; a state of another position is found."""
    texts = [[9, *range(5, 30), *range(first, first + 7)] for first in range(30, 60, 3)]
    for got, want in zip(sanitized_lm.score(texts), text_lm.score(texts), strict=True):
        assert got.logprobs[1:] == pytest.approx(want.logprobs[1:], abs=1e-4)
    assert sanitized_lm.stats["prefix_tokens_saved"] > 100
    plain, prefix, other = text_lm.prefix(texts[0][:9]), *(sanitized_lm.prefix(texts[0][:n]) for n in (9, 8))
    for _ in range(2):
        want = text_lm.generate([[70], [71, 72]], prefix=plain, **FREE)
        assert [c.token_ids for c in sanitized_lm.generate([[70], [71, 72]], prefix=prefix, **FREE)] == [
            c.token_ids for c in want
        ]
    wrong = other.snapshot.state
    assert wrong is not None
    wrong.position = 8  # it claims to be the other one
    mixed = dataclasses.replace(prefix.snapshot, state=wrong)
    with pytest.raises(SanitizerError, match="position 8"):
        sanitized_lm.generate([[70]], prefix=hybridlm.Prefix(prefix.token_ids, mixed), **FREE)
