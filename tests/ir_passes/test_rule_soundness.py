"""What the proof says of a variable is so: lanes outside the predicted set do not change it, and the facts hold.

Every equation at the top level of every program of the zoo, and random programs of common operations.
"""

from collections import Counter

import pytest
from jaxpr_mutation import Subject
from predicted_owners import faults, predictions
from random_steps import random_program
from zoo.catalogue import PROGRAMS
from zoo.program import Program

from ir_passes.values import Rows

RUN = [name for name in PROGRAMS if not name.startswith("sharded")]
RANDOM = 40


def broken(program: Program, seeds: range = range(3)) -> list[str]:
    return [f"{program.name}: {fault}" for fault in faults(Subject(program, seeds))]


def test_predictions_for_the_zoo_hold() -> None:
    assert [fault for name in RUN for fault in broken(PROGRAMS[name])] == []


def test_predictions_for_random_programs_hold() -> None:
    assert [fault for seed in range(RANDOM) for fault in broken(random_program(seed))] == []


@pytest.mark.long
@pytest.mark.parametrize("block", range(50))
def test_predictions_for_many_random_programs_hold(block: int) -> None:
    seeds = range(100 + 100 * block, 200 + 100 * block)
    assert [fault for seed in seeds for fault in broken(random_program(seed, 15 + seed % 30))] == []


def test_random_programs_are_varied() -> None:
    met, owners = Counter[str](), Counter[str]()
    for seed in range(RANDOM):
        for equation, _, value, _ in predictions(Subject(random_program(seed), range(1))).values():
            met[equation.primitive.name] += 1
            owners[type(value.owner).__name__] += 1
    assert len(met) >= 25, met
    assert all(owners[name] >= 5 for name in ("Common", "OneLane", "Rows", "PoolRows", "Mixed")), owners


def test_a_wrong_prediction_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows said to be those of other lanes."""
    real = predictions

    def shifted(subject: Subject) -> dict:
        return {
            var: one._replace(value=one.value.but(owner=Rows(one.value.owner.axis, start=1)))
            if isinstance(one.value.owner, Rows)
            else one
            for var, one in real(subject).items()
        }

    monkeypatch.setattr("predicted_owners.predictions", shifted)
    assert any("changed by" in fault for fault in broken(PROGRAMS["rows behind a slot map"]))
