"""Random schedules over a prefix cache: common prefixes, hits, evictions, cancellations, early ends.

Every completion is compared with that of a model without a cache; after every step rows, tree and account are whole.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_states import assert_kept_agrees, empty_cache
from tiny_variants import OTHER_GOLDENS

import hybridlm
from models import family_of

GOLDEN = Path(__file__).parents[2] / "golden"
# One of every family.
KINDS = ("dense_interval", "next_dense_layers", "sparse_base", *OTHER_GOLDENS)
STEMS = [np.random.default_rng(seed).integers(3, 90, 60).tolist() for seed in (1, 2)]
STEMS.append(STEMS[0][:17] + STEMS[1][:40])
"""Three prefixes; two share 17 tokens."""


class Asked:
    """A request: tokens of a beginning, at most one other token, and settings."""

    def __init__(self, stem: int, length: int, token: int | None, limit: int, stop: int | None):
        self.prompt = STEMS[stem][:length] + ([] if token is None else [token])
        self.settings: dict[str, Any] = {"max_tokens": limit, "ignore_eos": True, "stop": stop}

    @property
    def key(self) -> str:
        return json.dumps([self.prompt, self.settings])


REQUESTS = st.builds(
    Asked,
    st.integers(0, 2),
    st.sampled_from([1, 2, 4, 5, 6, 10, 11, 16, 17, 18, 23, 40]),
    st.sampled_from([None, 90, 91]),
    st.integers(1, 6),
    st.sampled_from([None, *range(3, 90, 9)]),
)
ACTIONS = st.lists(st.one_of(REQUESTS, st.just("step"), st.just("step"), st.just("cancel")), max_size=30)


class Alone:
    """Answers of a model without a cache."""

    def __init__(self, lm: hybridlm.LM, tolerance: float):
        self._lm, self._tolerance = lm, tolerance
        self._known: dict[str, list[int]] = {}

    def check(self, request: Asked, got: hybridlm.Completion) -> None:
        if request.key not in self._known:
            self._known[request.key] = self._lm.generate([request.prompt], **request.settings)[0].token_ids
        want = self._known[request.key]
        assert len(got.token_ids) <= len(want) or got.token_ids[: len(want)] != want
        for i, (a, b) in enumerate(zip(got.token_ids, want, strict=False)):
            if a != b:
                best = np.sort(np.asarray(self._lm.forward(request.prompt + want[:i]).logits[-1]))[-2:]
                assert best[1] - best[0] < 2 * self._tolerance, (request.prompt, got.token_ids, want)
                return
        assert got.finish_reason == "cancelled" or got.token_ids == want


def run(lm: hybridlm.LM, expected: Alone, actions: list[Any], **options: Any) -> None:
    """Perform the actions, then all that is left; compare every completion."""
    requests: list[Asked] = []
    ended: dict[int, hybridlm.Completion] = {}
    with lm.session(**options) as session:

        def step() -> None:
            for event in session.step():
                if event.completion is not None:
                    ended[event.index] = event.completion

        for action in actions:
            if isinstance(action, Asked):
                session.submit(action.prompt, **action.settings)
                requests.append(action)
            elif action == "step":
                step()
            elif alive := sorted(set(range(len(requests))) - set(ended)):
                session.cancel(alive[len(alive) // 2])
                step()
        while session.busy:
            step()
    assert sorted(ended) == list(range(len(requests)))
    for index, completion in ended.items():
        expected.check(requests[index], completion)
    assert lm.engine.prefix_cache is not None
    lm.engine.prefix_cache.check_integrity()


@pytest.fixture(scope="module")
def expected(text_lm: hybridlm.LM) -> Alone:
    return Alone(text_lm, 1e-4)


@pytest.mark.slow
@given(ACTIONS, st.sampled_from(["100kB", "250kB", {"device": "100kB", "host": 0}]))
@settings(max_examples=12)
def test_random_schedules(cached_lm: hybridlm.LM, expected: Alone, actions: list[Any], budget: Any) -> None:
    assert cached_lm.engine.checked
    run(empty_cache(cached_lm, budget), expected, actions)


@pytest.mark.long
@given(ACTIONS, st.sampled_from(["40kB", "100kB", "250kB", "4MB", {"device": "100kB", "host": 0}]))
@settings(max_examples=150)
def test_many_random_schedules(cached_lm: hybridlm.LM, expected: Alone, actions: list[Any], budget: Any) -> None:
    run(empty_cache(cached_lm, budget), expected, actions)


@pytest.mark.long
@given(ACTIONS)
@settings(max_examples=60)
def test_random_schedules_with_drafts(cached_lm: hybridlm.LM, expected: Alone, actions: list[Any]) -> None:
    """Every proposal is verified: rows move on by as many tokens as were accepted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybridlm.engine.speculation.Speculation.always", True)
        run(empty_cache(cached_lm, "100kB"), expected, actions, speculate="ngram")


@pytest.mark.long
@given(ACTIONS)
@settings(max_examples=8)
def test_the_sanitizer_finds_nothing_wrong(cached_sanitized: hybridlm.LM, expected: Alone, actions: list[Any]) -> None:
    run(empty_cache(cached_sanitized, "300kB"), expected, actions)


@pytest.fixture(scope="module")
def cached_sanitized(sanitized_lm: hybridlm.LM) -> Any:
    yield sanitized_lm
    empty_cache(sanitized_lm, None)


@pytest.mark.long
@pytest.mark.parametrize("golden", KINDS)
def test_every_kind_of_state(golden: str) -> None:
    """Cold equals warm around two chunks, and in a random schedule with evictions."""
    options: dict[str, Any] = {"lanes": 3, "context": 140, "dtype": "float32", "chunk": 7}
    cold = hybridlm.load(GOLDEN / golden, **options)
    warm = hybridlm.load(GOLDEN / golden, prefix_cache="50MB", **options)
    tolerance = TOLERANCES[family_of(json.loads((GOLDEN / golden / "config.json").read_text())).name]
    expected, last = Alone(cold, tolerance), cold.config.vocab_size - 1
    for length in range(1, 18):
        begins = [min(last, 3 + length), *STEMS[0][: length - 1]]
        for prompt in (begins, [*begins, 5, 6], [*begins, 5, 6]):
            request, saved = Asked(0, 0, None, 4, None), warm.stats["prefix_tokens_saved"]
            request.prompt = [min(token, last) for token in prompt]
            expected.check(request, warm.generate([request.prompt], **request.settings)[0])
            assert_kept_agrees(cold, warm, request.prompt, tolerance)
        assert warm.stats["prefix_tokens_saved"] - saved >= length - 7, "the last one went on from a state"
    moves = warm.engine.moves
    small = {"device": 3 * (moves.state_bytes + moves.span_bytes), "host": moves.state_bytes + moves.span_bytes}
    rng = np.random.default_rng(0)
    for _ in range(6):
        actions: list[Any] = []
        for _ in range(12):
            actions.append(Asked(int(rng.integers(3)), int(rng.integers(1, 40)), None, 3, None))
            actions[-1].prompt = [min(token, last) for token in actions[-1].prompt]
            actions += ["step"] * int(rng.integers(3)) + ["cancel"] * int(rng.integers(5) == 0)
        run(empty_cache(warm, small), expected, actions)
    assert warm.stats["prefix_evictions"] > 0
