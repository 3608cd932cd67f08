"""Every fault of speculation is found by who has to find it, and nothing in the engine as it is."""

import pytest
from engine_mutants import traffic
from engine_mutants.catalogue import HOSTS, STEPS
from engine_mutants.drafts import PartlyRight
from engine_mutants.mutant import Finder
from engine_mutants.replay import RIGHT, Faulty, refused
from text_checkpoint import write_text_checkpoint
from verify_scene import SIZES, Steps, prompts_of, scene_of

import hybridlm
from ir_passes.violations import ViolationKind

REPLAYED = [id for id, one in STEPS.items() if one.finder is Finder.REPLAY]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return Steps(hybridlm.load(write_text_checkpoint(tmp_path_factory.mktemp("model")), **SIZES))


@pytest.fixture(scope="module")
def faulty(steps: Steps) -> Faulty:
    return Faulty(steps, [STEPS[id] for id in REPLAYED], [scene_of(steps), prompts_of(steps)])


@pytest.mark.parametrize("id", ["", *REPLAYED])
def test_fault_of_the_step_is_found_by_the_replay(faulty: Faulty, id: str) -> None:
    assert bool(faulty.wrong(id)) == bool(id)


@pytest.mark.parametrize("id", [id for id in STEPS if id not in REPLAYED])
def test_fault_of_the_step_is_found_by_the_proof(steps: Steps, id: str) -> None:
    assert refused(steps, STEPS[id]) & STEPS[id].kinds


def test_the_proof_finds_nothing_wrong_with_the_step(steps: Steps) -> None:
    assert not refused(steps, RIGHT)


@pytest.mark.long
@pytest.mark.parametrize("id", REPLAYED)
def test_the_proof_says_nothing_of_what_the_replay_has_to_find(steps: Steps, id: str) -> None:
    """But of faults that are put in by two replays: rows are read for the second when the first has written them."""
    assert refused(steps, STEPS[id]) <= {ViolationKind.STALE}


@pytest.fixture(scope="module")
def alone(text_lm: hybridlm.LM) -> list[traffic.Alone]:
    return traffic.alone(text_lm)


def test_nothing_is_wrong_with_the_engine(text_lm: hybridlm.LM, alone: list[traffic.Alone]) -> None:
    """In traffic of lanes with all drafts, fewer and none, with two cancelled requests and rows that move."""
    before = dict(text_lm.stats)
    assert traffic.finder(text_lm, alone, PartlyRight(alone)) is None
    drafted, accepted = (text_lm.stats[name] - before[name] for name in ("drafted_tokens", "accepted_tokens"))
    assert drafted > accepted + 10 > 30


@pytest.mark.parametrize("id", HOSTS)
def test_fault_of_the_host_is_found(
    text_lm: hybridlm.LM, alone: list[traffic.Alone], id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOSTS[id].fault(monkeypatch)
    assert traffic.finder(text_lm, alone, PartlyRight(alone)) is HOSTS[id].finder
