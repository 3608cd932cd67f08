"""Random schedules of drafts, cancels, moves and hits: rows hold accepted tokens after every step."""

from collections import Counter
from typing import Any

import head_checkpoints
import numpy as np
import pytest
from head_checkpoints import write_agreeing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_states import empty_cache
from random_traffic import Known
from replayed import Replayed, Run

import hybridlm
from models import KV_BLOCK

MOST = 24
STEM = np.random.default_rng(5).integers(3, 90, 12).tolist()
PROMPTS = [
    [91, *STEM], [5], [91, *STEM[:7], 90], STEM[:5], [91, *STEM[:7], 4, 4, 4], [*STEM[:6], 6], [8, 9],
    [91, *STEM, 7, 7],
]  # fmt: skip
"""Shorter and longer than a chunk, of whole chunks and of one token; some begin alike."""
JOIN = st.tuples(st.just("join"), st.integers(0, len(PROMPTS) - 1), st.integers(1, MOST))
ACTION = st.one_of(JOIN, st.tuples(st.just("cancel"), st.integers(0, 9)), st.sampled_from([("step",), ("resize",)]))
ACTIONS = st.lists(ACTION, max_size=20)
PATTERN = st.lists(st.integers(0, 9), min_size=1, max_size=12)
TIGHT = {"device": "100kB", "host": "50kB"}
BUDGET = st.sampled_from([None, "100kB", TIGHT, {"device": "100kB", "host": 0}])


@pytest.fixture(scope="module")
def replayed(text_lm: hybridlm.LM) -> Replayed:
    return Replayed(text_lm, PROMPTS, MOST)


@pytest.fixture(scope="module")
def of_many_drafts(text_lm: hybridlm.LM) -> Replayed:
    """The step has one token more than a chunk of the recurrence."""
    lm = hybridlm.load(text_lm.path, lanes=3, context=256, dtype="float32", chunk=5, draft_tokens=64)
    return Replayed(lm, PROMPTS[:3], 200)


@pytest.fixture(scope="module")
def of_eight_lanes(text_lm: hybridlm.LM) -> Replayed:
    return Replayed(hybridlm.load(text_lm.path, lanes=8, context=256, dtype="float32", chunk=5), PROMPTS, MOST)


pytestmark = pytest.mark.usefixtures("always")


LONG = np.random.default_rng(6).integers(3, 90, 140).tolist()
LONG_PROMPTS = [
    LONG[:122], [*LONG[:130], 5], [*LONG[:131], 90], [*LONG[:120], 4], [91, *LONG[:124]], LONG[:127], [*LONG[:60], 8],
]  # fmt: skip
"""They end before and after the first page; two share it."""


@pytest.fixture(scope="module")
def of_few_pages(text_lm: hybridlm.LM) -> Replayed:
    """Three rows of two pages each, and three pages for all of them."""
    settings: dict[str, Any] = {"lanes": 3, "context": 256, "dtype": "float32", "chunk": 32}
    replayed = Replayed(hybridlm.load(text_lm.path, **settings), LONG_PROMPTS, MOST)
    replayed.lm = hybridlm.load(text_lm.path, cache=3 * KV_BLOCK, **settings)
    return replayed


def run(replayed: Replayed, actions: list[Any], pattern: list[int] | None, budget: Any) -> tuple[int, Counter[str]]:
    """Perform the actions and the remaining work; return counts of compared rows and events.

    Args:
        pattern: right and wrong drafts; None for the loaded drafter.
    """
    engine = replayed.lm.engine
    cache = empty_cache(replayed.lm, budget).engine.prefix_cache
    try:
        drafter = "as loaded" if pattern is None else Known([text.tokens for text in replayed.texts], pattern)
        with replayed.lm.session(speculate=drafter) as session:
            watched = Run(replayed, session)
            for lane in range(engine.lanes):  # so that pools have all their rows from the first step on
                watched.join(lane % len(replayed.texts), 4 + lane)
            watched.step()
            for kind, *choice in actions:
                getattr(watched, kind)(*choice)
            watched.finish()
            return watched.checked, watched.events + Counter({} if cache is None else cache.stats)
    finally:
        empty_cache(replayed.lm, None)


@pytest.mark.slow
@given(ACTIONS, PATTERN, BUDGET)
@settings(max_examples=20)
def test_random_schedules(replayed: Replayed, actions: list[Any], pattern: list[int], budget: Any) -> None:
    run(replayed, actions, pattern, budget)


@pytest.mark.long
@given(ACTIONS, PATTERN, BUDGET)
@settings(max_examples=500)
def test_many_random_schedules(of_eight_lanes: Replayed, actions: list[Any], pattern: list[int], budget: Any) -> None:
    run(of_eight_lanes, actions, pattern, budget)


@pytest.fixture(scope="module", params=[False, True], ids=["random head", "head that agrees"])
def of_a_head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    directory = write_agreeing(tmp_path_factory.mktemp("agreeing")) if request.param else head_checkpoints.GOLDEN
    settings: dict[str, Any] = {"lanes": 3, "context": 150, "dtype": "float32", "chunk": 5, "draft_tokens": 3}
    return Replayed(hybridlm.load(directory, speculate="mtp", **settings), PROMPTS, MOST)


@pytest.mark.long
@given(ACTIONS, st.sampled_from([None, "300kB"]))
@settings(max_examples=40)
def test_random_schedules_of_a_models_own_head(of_a_head: Replayed, actions: list[Any], budget: Any) -> None:
    """The rows of the draft head hold pairs of accepted tokens, too."""
    run(of_a_head, actions, None, budget)


@pytest.mark.long
@pytest.mark.parametrize("pattern", [[4], [4, 8, 3, 0, 7, 2, 9], [8, 6, 1]])
def test_64_drafts(of_many_drafts: Replayed, pattern: list[int]) -> None:
    initial = of_many_drafts.lm.stats["accepted_tokens"]
    run(of_many_drafts, [("join", number, 200) for number in range(3)], pattern, None)
    assert of_many_drafts.lm.stats["accepted_tokens"] > initial + 100


FEW_PAGES = pytest.mark.filterwarnings("ignore:.*was preempted after")


@pytest.mark.slow
@FEW_PAGES
def test_events_of_schedules_in_few_pages(of_few_pages: Replayed, little_room: None) -> None:
    """Sequences join and are cancelled, draft, are preempted, and share pages; rows are right all the time."""
    before, events = dict(of_few_pages.lm.stats), Counter[str]()
    joins = [("join", number % len(LONG_PROMPTS), MOST) for number in range(10)]
    cancels = [("cancel", 1), *[("step",)] * 8, ("cancel", 0)]
    for pattern, budget in (([4, 8, 0, 6, 9], "1MB"), ([4], None), ([8, 3], {"device": "300kB", "host": 0})):
        checked, counted = run(of_few_pages, [*joins, *[("step",)] * 9, *cancels], pattern, budget)
        assert checked > 60
        events += counted
    events += Counter({name: count - before.get(name, 0) for name, count in of_few_pages.lm.stats.items()})
    rare = [
        name
        for name in ("preemptions", "drafted_tokens", "accepted_tokens", "prefix_hits", "cancelled", "shared pages")
        if events[name] < 3
    ]
    assert not rare, events
    assert events["drafted_tokens"] > events["accepted_tokens"], "some are refused"


JOIN_LONG = st.tuples(st.just("join"), st.integers(0, len(LONG_PROMPTS) - 1), st.integers(1, MOST))
FEW_ACTIONS = st.lists(
    st.one_of(JOIN_LONG, JOIN_LONG, st.tuples(st.just("cancel"), st.integers(0, 9)), st.just(("step",))), max_size=20
)


@pytest.mark.long
@FEW_PAGES
@pytest.mark.usefixtures("little_room")
@given(FEW_ACTIONS, PATTERN, st.sampled_from([None, "1MB", {"device": "300kB", "host": 0}]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_schedules_in_few_pages(
    of_few_pages: Replayed, actions: list[Any], pattern: list[int], budget: Any
) -> None:
    run(of_few_pages, actions, pattern, budget)


def check_events(replayed: Replayed) -> None:
    """Drafts are accepted and rejected; states are continued, moved to the host and dropped."""
    mapping, saved = dict(replayed.lm.stats), Counter[str]()
    actions = [("join", number, 20) for number in range(len(PROMPTS))]
    for budget in (None, TIGHT):
        checked, counted = run(replayed, actions, [4, 8, 0, 6, 9, 1, 3], budget)
        saved.update(counted)
        assert checked > 60
    gained = {name: replayed.lm.stats[name] - count for name, count in mapping.items()}
    assert gained["drafted_tokens"] > gained["accepted_tokens"] + 20 > 100
    assert gained["prefix_tokens_saved"] > 20
    assert saved["prefix_hits"] > 2 and saved["prefix_spills"] > 2 and saved["prefix_evictions"] > 2


@pytest.mark.slow
def test_events_of_these_schedules(replayed: Replayed) -> None:
    check_events(replayed)


@pytest.mark.long
def test_events_of_schedules_of_eight_lanes(of_eight_lanes: Replayed) -> None:
    check_events(of_eight_lanes)
