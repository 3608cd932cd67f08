"""Prompts with cached prefixes equal cold prompts for every family, also while states are evicted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES
from kept_states import assert_agree, assert_kept_agrees, empty_cache
from tiny_variants import OTHER_GOLDENS

import hybridlm
from models import family_of

GOLDEN = Path(__file__).parents[2] / "golden"
# One of every family.
KINDS = ("dense_interval", "next_dense_layers", "sparse_base", *OTHER_GOLDENS)
FREE: dict[str, Any] = {"ignore_eos": True}


@pytest.mark.long
@pytest.mark.parametrize("golden", KINDS)
def test_every_kind_of_state(golden: str) -> None:
    """Cold equals warm around two chunks, also with states that were moved and evicted."""
    options: dict[str, Any] = {"lanes": 3, "context": 140, "dtype": "float32", "chunk": 7}
    cold = hybridlm.load(GOLDEN / golden, **options)
    warm = hybridlm.load(GOLDEN / golden, prefix_cache="50MB", **options)
    tolerance = TOLERANCES[family_of(json.loads((GOLDEN / golden / "config.json").read_text())).name]
    rng, last = np.random.default_rng(0), cold.config.vocab_size - 1
    stems = [np.minimum(rng.integers(3, 90, 60), last).tolist() for _ in range(2)]
    stems.append(stems[0][:17] + stems[1][:40])
    for length in range(1, 18):
        begins = [min(last, 3 + length), *stems[0][: length - 1]]
        for prompt in (begins, [*begins, 5, 6], [*begins, 5, 6]):
            saved = warm.stats["prefix_tokens_saved"]
            (got,), (want,) = (lm.generate([prompt], max_tokens=4, **FREE) for lm in (warm, cold))
            assert_agree(cold, got, want, tolerance)
            assert_kept_agrees(cold, warm, prompt, tolerance)
        assert warm.stats["prefix_tokens_saved"] - saved >= length - 7, "the last one went on from a state"
    moves = warm.engine.moves
    small = {"device": 3 * (moves.state_bytes + moves.span_bytes), "host": moves.state_bytes + moves.span_bytes}
    empty_cache(warm, small)
    for _ in range(6):
        prompts = [stems[rng.integers(3)][: int(rng.integers(1, 40))] for _ in range(12)]
        for got, want in zip(*(lm.generate(prompts, max_tokens=3, **FREE) for lm in (warm, cold)), strict=True):
            assert_agree(cold, got, want, tolerance)
        assert warm.engine.prefix_cache is not None
        warm.engine.prefix_cache.check_integrity()
    assert warm.stats["prefix_evictions"] > 0
