"""Sequences in too few pages wait, are preempted and recomputed; tokens equal solo runs."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_checkpoint import write_random_checkpoint
from random_traffic import MANY, PAGES, PLAIN, SETTINGS, Asked, Known, alone, compare, finished, prompt, run, traffic

import hybridlm
from hybridlm import Completion
from hybridlm.engine.scheduler import Scheduler
from hybridlm.engine.speculation import Speculation
from models import KV_BLOCK

FULL = "was preempted after"
pytestmark = [pytest.mark.usefixtures("stored_steps", "little_room"), pytest.mark.filterwarnings(f"ignore:.*{FULL}")]


@pytest.fixture(scope="module")
def lm(text_path: Path, stored_steps: None) -> hybridlm.LM:
    """Four lanes of four pages each, and five pages for all of them."""
    return hybridlm.load(text_path, **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", (0, 2, 7))
def test_random_traffic_equals_solo_runs(lm: hybridlm.LM, seed: int) -> None:
    assert run(lm, seed) >= 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 30))
def test_more_random_traffic_equals_solo_runs(lm: hybridlm.LM, seed: int) -> None:
    run(lm, seed, count=30, kinds=MANY)


@pytest.mark.slow
def test_drafts_survive_preemptions(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts need pages, too; how many were accepted is known before a sequence is preempted."""
    monkeypatch.setattr(Speculation, "always", True)
    requests: list[Asked] = [(prompt(122 - i, i), {"max_tokens": 30, **PLAIN}) for i in range(5)]
    want, initial_stats = alone(lm, requests), lm.stats
    completions, preempted = traffic(lm, requests, random.Random(1), arrivals=1.0, speculate=Known(want, (7,)))
    compare(completions, want)
    drafted, accepted = (lm.stats[name] - initial_stats[name] for name in ("drafted_tokens", "accepted_tokens"))
    assert preempted >= 1 and 0 < accepted < drafted


@pytest.fixture
def preempted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Indices of preempted requests, as they are preempted."""
    indices, right = list[int](), Scheduler._preempt

    def recorded(self: Scheduler, sequence: Any) -> None:
        indices.append(sequence.request.index)
        right(self, sequence)

    monkeypatch.setattr(Scheduler, "_preempt", recorded)
    return indices


def test_the_youngest_is_preempted_and_keeps_its_place(lm: hybridlm.LM, preempted: list[int]) -> None:
    """The third of three two-page sequences is preempted and returns before a later one."""
    with lm.session() as session:
        for i in range(3):
            session.submit(prompt(122, i), max_tokens=20 + i, **PLAIN)
        while not preempted:
            session.step()
        session.submit(prompt(5), max_tokens=18, **PLAIN)  # one page, which is free
        assert list(finished(session)) == [0, 1, 2, 3]
    assert preempted == [2]


def test_a_high_priority_is_preempted_last(lm: hybridlm.LM, preempted: list[int]) -> None:
    with lm.session() as session:
        for i in range(3):
            session.submit(prompt(122, i), priority=i, max_tokens=20, **PLAIN)
        finished(session)
    assert preempted == [0]


def test_no_sequence_overtakes_the_one_that_waits_for_pages(lm: hybridlm.LM) -> None:
    """Rows are free, pages suffice for the last only; the large sequence is first."""
    with lm.session() as session:
        session.submit(prompt(370), max_tokens=3, **PLAIN)
        session.submit(prompt(270), max_tokens=2, **PLAIN)
        session.submit(prompt(5), max_tokens=2, **PLAIN)
        session.step()
        scheduler: Any = session._scheduler
        assert [len(sequence.prompt) for sequence in scheduler.joined] == [370]
        assert [sequence.request.index for _, sequence in sorted(scheduler.waiting)] == [1, 2]
        assert next(iter(finished(session))) == 0


def test_one_warning_for_a_run_has_a_remedy(lm: hybridlm.LM) -> None:
    preemptions = lm.stats["preemptions"]
    with pytest.warns(UserWarning, match=r"all 640 positions of the KV cache .* load\(cache=\)") as caught:
        lm.generate([prompt(122, i) for i in range(4)], max_tokens=30, **PLAIN)
    assert lm.stats["preemptions"] > preemptions + 1
    assert len([warning for warning in caught if FULL in str(warning.message)]) == 1


def test_a_cancelled_sequence_gives_its_pages_back(lm: hybridlm.LM) -> None:
    """Cancelled while it waits after a preemption, and while it decodes."""
    with lm.session() as session:
        for i in range(3):
            session.submit(prompt(122, i), max_tokens=25, **PLAIN)
        scheduler: Any = session._scheduler
        while not (scheduler.waiting and scheduler.decoding):
            session.step()
        waiting = scheduler.waiting[0][1]
        assert waiting.generated and waiting.slot is None
        session.cancel(waiting.request.index)
        session.cancel(scheduler.decoding[0].request.index)
        finished(session)
        pool = scheduler._pool
        assert pool is not None and pool.page_owner is not None and pool.page_owner.free == PAGES
        assert pool.owner.held == []


@pytest.mark.slow
def test_a_preempted_sequence_continues_from_its_cached_state(lm: hybridlm.LM) -> None:
    cached = hybridlm.load(lm.path, prefix_cache="2MB", **SETTINGS)
    requests: list[Asked] = [(prompt(122, i), {"max_tokens": 25, **PLAIN}) for i in range(4)]
    completions, preempted = traffic(cached, requests, random.Random(0))
    compare(completions, alone(lm, requests))
    assert preempted >= 1 and cached.stats["prefix_hits"] >= preempted


@pytest.mark.slow
def test_reads_and_changes_inside_the_model_survive_preemptions(lm: hybridlm.LM) -> None:
    """Each position is read once; changes are made again."""
    change = hybridlm.Intervention.scale_state(layer=0, factor=0.5, positions=[4, 125])
    options: dict[str, Any] = {"hidden_states": [1], "states": True, "positions": "all", "interventions": [change]}

    def run_all(batched: bool) -> list[Completion]:
        results = dict[int, Completion]()
        for group in ([0, 1, 2],) if batched else ([0], [1], [2]):
            with lm.session(speculate=None) as session:
                numbers = {session.submit(prompt(122, i), max_tokens=20, **PLAIN, **options): i for i in group}
                results |= {numbers[index]: completion for index, completion in finished(session).items()}
        return [results[i] for i in range(3)]

    preemptions = lm.stats["preemptions"]
    want, got = run_all(False), run_all(True)
    assert lm.stats["preemptions"] > preemptions
    for completion, expected in zip(got, want, strict=True):
        assert completion.token_ids == expected.token_ids and completion.captured is not None
        assert expected.captured is not None
        np.testing.assert_array_equal(completion.captured.positions, expected.captured.positions)
        np.testing.assert_allclose(
            completion.captured.hidden_states[1], expected.captured.hidden_states[1], atol=1e-4, rtol=1e-4
        )
        for name, states in expected.captured.states.items():
            np.testing.assert_allclose(completion.captured.states[name], states, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_on_a_mesh_a_sequence_of_the_same_device_is_preempted(lm: hybridlm.LM) -> None:
    """Four rows and three pages on each of two devices."""
    settings: dict[str, Any] = SETTINGS | {"cache": 6 * KV_BLOCK, "lanes": 8}
    split = hybridlm.load(lm.path, mesh=hybridlm.mesh(data=2), **settings)
    requests: list[Asked] = [(prompt(122, i), {"max_tokens": 20, **PLAIN}) for i in range(9)]
    completions, preempted = traffic(split, requests, random.Random(3))
    compare(completions, alone(split, requests))
    assert preempted >= 2


@pytest.mark.long
@pytest.mark.parametrize("axes", [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1)], ids=str)
def test_random_traffic_on_a_mesh_equals_solo_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axes: tuple[int, int, int]
) -> None:
    """Drafts, shared pages, cancels and preemptions in few pages of each device; rows of experts are exchanged."""
    monkeypatch.setattr(Speculation, "always", True)
    directory = write_random_checkpoint("sparse_base" if axes[2] > 1 else "dense_base", tmp_path)
    settings: dict[str, Any] = SETTINGS | {"lanes": 4 * axes[0], "cache": PAGES * KV_BLOCK * axes[0]}
    meshed = hybridlm.load(directory, mesh=hybridlm.mesh(*axes), prefix_cache="2MB", **settings)
    preempted = sum(run(meshed, seed, count=14 * axes[0], drafts=seed % 2 == 0) for seed in range(4))
    stats = meshed.stats
    assert preempted >= 4 and stats["prefix_hits"] >= 4 and 0 < stats["accepted_tokens"] < stats["drafted_tokens"]


@pytest.mark.slow
def test_the_sanitizer_finds_nothing_wrong(lm: hybridlm.LM) -> None:
    settings: dict[str, Any] = SETTINGS | {"certify": "error"}
    sanitized = hybridlm.load(lm.path, sanitize=True, **settings)
    requests: list[Asked] = [(prompt(122, i), {"max_tokens": 15, **PLAIN}) for i in range(3)]
    completions, preempted = traffic(sanitized, requests, random.Random(5))
    compare(completions, alone(lm, requests))
    assert preempted >= 1
