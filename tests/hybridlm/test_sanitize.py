"""`load(sanitize=True)`: right runs pass and give the same tokens; what it catches is in test_engine_mutants.py."""

from typing import Any

import pytest

import hybridlm

PROMPTS = ["Ada", "a longer prompt of many letters", "b", "chunk", "six___"]
FREE: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}


def test_right_runs_pass(text_lm: hybridlm.LM, sanitized_lm: hybridlm.LM) -> None:
    """Twice, so that rows are reused; scoring between."""
    want = text_lm.generate(PROMPTS, **FREE)
    scores = text_lm.score(PROMPTS)
    for _ in range(2):
        assert [c.token_ids for c in sanitized_lm.generate(PROMPTS, **FREE)] == [c.token_ids for c in want]
        for got, expected in zip(sanitized_lm.score(PROMPTS), scores, strict=True):
            assert got.logprobs[1:] == pytest.approx(expected.logprobs[1:], abs=1e-4)
    assert sanitized_lm._engine.sanitizer is not None and sanitized_lm._engine.sanitizer.steps > 20


@pytest.mark.long
def test_one_sequence_alone(text_lm: hybridlm.LM, sanitized_lm: hybridlm.LM) -> None:
    assert sanitized_lm.generate("Ada", **FREE)[0].token_ids == text_lm.generate("Ada", **FREE)[0].token_ids
