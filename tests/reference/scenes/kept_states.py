"""Cached states of a prefix cache against states that were read without a cache."""

import dataclasses
from typing import Any

import numpy as np

import hybridlm
from hybridlm.engine.prefix import _arrays
from hybridlm.prefix_cache.budget import cache_budget
from hybridlm.prefix_cache.cache import PrefixCache


def empty_cache(lm: hybridlm.LM, budget: Any) -> hybridlm.LM:
    """Give the model an empty cache, or with None no cache, in place of another one; its programs stay."""
    engine = lm.engine
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    engine.prefix_cache = None if budget is None else PrefixCache(engine.moves, cache_budget(budget), engine.chunk)
    return lm


def assert_agree(lm: hybridlm.LM, got: hybridlm.Completion, want: hybridlm.Completion, tolerance: float = 1e-4) -> None:
    """Compare tokens until two of them are as likely as each other in the model without a cache."""
    assert got.prompt_token_ids == want.prompt_token_ids and len(got.token_ids) == len(want.token_ids)
    for i, (a, b) in enumerate(zip(got.token_ids, want.token_ids, strict=True)):
        if a != b:
            best = np.sort(np.asarray(lm.forward(want.prompt_token_ids + want.token_ids[:i]).logits[-1]))[-2:]
            assert best[1] - best[0] < 2 * tolerance
            return


def assert_kept_agrees(cold: hybridlm.LM, warm: hybridlm.LM, prompt: list[int], tolerance: float) -> None:
    """Compare all arrays of the state after a prompt, relative to the largest number."""
    cache = warm.engine.prefix_cache
    assert cache is not None
    with cache.pinned([*prompt, 5], None) as snapshot:
        want = cold.prefix([*prompt, 5]).snapshot
        assert snapshot is not None and snapshot.position == len(prompt) and snapshot.tokens == want.tokens
        spans = tuple(span._replace(buffer=warm.engine.moves.copied(span.buffer)) for span in snapshot.spans)
        snapshot = dataclasses.replace(snapshot, spans=spans)
        for part, got, expected in zip(want.kind.layout, _arrays(snapshot), _arrays(want), strict=True):
            if part.path == "token":
                continue  # the token sampled by the state's writer
            if tolerance:
                limit = tolerance * max(1.0, float(np.abs(expected).max(initial=0)))
                np.testing.assert_allclose(got, expected, rtol=0, atol=limit, err_msg=str(part))
            else:
                assert got.tobytes() == expected.tobytes(), part
