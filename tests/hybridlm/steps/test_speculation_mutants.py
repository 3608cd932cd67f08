"""Each fault of speculation is found by its finder; the unchanged engine passes."""

from pathlib import Path

import jax.numpy as jnp
import pytest
from engine_mutants import traffic
from engine_mutants.catalogue import HOSTS, STEPS
from engine_mutants.drafts import partly_right
from engine_mutants.mutant import Finder
from engine_mutants.replay import RIGHT, Faulty, mutated, refused
from verify_scene import SIZES, Steps, prompts_of, scene_of

import hybridlm
from hybridlm.compiler.measure import unaccepted_reach
from hybridlm.steps.contract import page_table, slot_map, step_contract
from ir_passes import LaneContract, ViolationKind

REPLAYED = [id for id, mutant in STEPS.items() if mutant.finder is Finder.REPLAY]


@pytest.fixture(scope="module")
def steps(text_path: Path) -> Steps:
    return Steps(hybridlm.load(text_path, **SIZES))


@pytest.fixture(scope="module")
def faulty(steps: Steps) -> Faulty:
    return Faulty(steps, [STEPS[id] for id in REPLAYED], [scene_of(steps), prompts_of(steps)])


@pytest.mark.long
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
def test_the_proof_accepts_faults_of_the_replay(steps: Steps, id: str) -> None:
    """Faults by two replays are exempt: rows are read again after the first write."""
    assert refused(steps, STEPS[id]) <= {ViolationKind.STALE}


@pytest.fixture(scope="module")
def completions(text_lm: hybridlm.LM) -> list[traffic.Alone]:
    return traffic.alone(text_lm)


@pytest.mark.slow
def test_nothing_is_wrong_with_the_engine(text_lm: hybridlm.LM, completions: list[traffic.Alone]) -> None:
    """Lanes have all drafts, fewer or no drafts; two requests are cancelled, and rows move."""
    stats = dict(text_lm.stats)
    assert traffic.finder(text_lm, completions, partly_right(completions)) is None
    drafted, accepted = (text_lm.stats[name] - stats[name] for name in ("drafted_tokens", "accepted_tokens"))
    assert drafted > accepted + 10 > 30


@pytest.mark.slow
@pytest.mark.parametrize("id", HOSTS)
def test_fault_of_the_host_is_found(
    text_lm: hybridlm.LM, completions: list[traffic.Alone], id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOSTS[id].fault(monkeypatch)
    assert traffic.finder(text_lm, completions, partly_right(completions)) is HOSTS[id].finder


@pytest.mark.long
def test_the_sanitizer_finds_nothing_wrong(sanitized_lm: hybridlm.LM, completions: list[traffic.Alone]) -> None:
    assert traffic.finder(sanitized_lm, completions, partly_right(completions)) is None


@pytest.mark.long
@pytest.mark.parametrize("id", ["moved-by-all-drafts", "moved-by-one", "moved-twice"])
def test_the_sanitizer_sees_positions_that_are_wrong_before_tokens_are(
    sanitized_lm: hybridlm.LM, completions: list[traffic.Alone], id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOSTS[id].fault(monkeypatch)
    assert traffic.finder(sanitized_lm, completions, partly_right(completions)) is Finder.SANITIZER


def _contract(steps: Steps, lanes: int) -> LaneContract:
    table = page_table(steps.lm.engine.pages(lanes))
    return step_contract(True, steps.lm.engine.programs.structure.arrays, slot_map(lanes), table)


@pytest.mark.long
@pytest.mark.parametrize("id", ["", "every-draft-kept", "convolution-of-all-tokens"])
def test_whether_tokens_behind_those_that_are_accepted_reach_a_row(steps: Steps, id: str) -> None:
    """Measure our step with the public measurement of user steps."""
    scene = scene_of(steps)
    wrong = mutated(steps.lm.engine.programs.structure, [STEPS[id] if id else RIGHT])
    reach = unaccepted_reach(
        lambda *args: wrong(jnp.int32(0), *args),
        (steps.lm.engine.params, scene.rows, scene.inputs),
        _contract(steps, len(scene.lanes)),
        {"args[2].batch.tokens": 1},
        lambda path: path.endswith((".key", ".value")),
    )
    assert reach.compared > 10 and bool(reach.reached) == bool(id)
