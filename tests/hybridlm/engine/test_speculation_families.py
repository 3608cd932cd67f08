"""Every family samples the same tokens with drafts as without, at most near ties excepted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES
from near_ties import check_same_samples, perturbed
from random_traffic import Known

import hybridlm
from hybridlm.engine.speculation import Speculation
from models import family_of

GOLDEN = Path(__file__).parents[2] / "golden"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
REPEATING = [5, 9, 14, 3, 20, 7]
PROMPTS = [REPEATING * 4, [11], list(range(3, 40)), [6, 6, 6, 6, 30], REPEATING * 2 + [40, 41] + REPEATING, [8, 31] * 9]
SETTINGS: dict[str, Any] = {"max_tokens": 64, "ignore_eos": True}
SAMPLED = {**SETTINGS, "temperature": 0.8, "seed": 3}


@pytest.mark.long
def test_all_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt lookup, and right, partly right and wrong drafts, greedy and sampled."""
    monkeypatch.setattr(Speculation, "always", True)
    tokens = differ = 0
    for name in NAMES:
        tolerance = TOLERANCES[family_of(json.loads((GOLDEN / name / "config.json").read_text())).name]
        lm = hybridlm.load(GOLDEN / name, lanes=3, context=200, dtype="float32", chunk=7)
        for settings in (SETTINGS, SAMPLED):
            want = lm.generate(PROMPTS, **settings)
            for drafter in ("ngram", Known(want, [4, 8, 0, 6, 9, 4, 7])):
                stats = dict(lm.stats)
                completions = lm.generate(PROMPTS, speculate=drafter, **settings)
                differ += check_same_samples(lm, completions, want, settings, tolerance)
                tokens += sum(len(completion.token_ids) for completion in completions)
                drafted, accepted = (lm.stats[key] - stats[key] for key in ("drafted_tokens", "accepted_tokens"))
                assert drafter == "ngram" or 0 < accepted < drafted
    assert tokens > 10_000 and differ <= tokens / 10_000


@pytest.mark.long
@pytest.mark.parametrize("settings", [SETTINGS, SAMPLED])
def test_other_tokens_are_seen(text_lm: hybridlm.LM, settings: dict[str, Any]) -> None:
    """One token that was not the best is no near tie."""
    want = text_lm.generate(PROMPTS, **settings)
    copies = [replace(completion, token_ids=list(completion.token_ids)) for completion in want]
    assert check_same_samples(text_lm, copies, want, settings, 1e-3) == 0
    assert np.argmax(perturbed(text_lm, want[3], 9, settings, 3)) == want[3].token_ids[9]
    copies[3].token_ids[9] = (copies[3].token_ids[9] + 1) % 90
    with pytest.raises(AssertionError, match="request 3: token 9 differs, margin"):
        check_same_samples(text_lm, copies, want, settings, 1e-3)
    assert check_same_samples(text_lm, copies, want, settings, 1e3) == 1
