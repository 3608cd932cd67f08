"""Soundness of abstract values: only predicted lanes change a variable, facts hold.

Every equation of every program of the zoo, and random programs of common operations; claims about lanes of length 0
are compared for these lanes.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from idle_predictions import idle_faults
from jaxpr_mutation import Subject
from numpy_interpreter import apply as by_numpy
from predicted_owners import faults, predictions
from random_calls import random_calls
from random_forms import random_form
from random_layouts import MET, random_layout
from random_neighbours import random_neighbours
from random_steps import random_program
from traced_programs import normal_program
from xla_equations import apply as by_xla
from zoo.catalogue import PROGRAMS
from zoo.program import Program

from ir_passes import Lane, LaneContract, Pool
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.numbering import Leaf
from ir_passes.proof.owners import LaneRows
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import UnchangedRows

RUN = [name for name in PROGRAMS if not name.startswith(("sharded", "kernel:"))]
RANDOM, LAYOUTS, NEIGHBOURS, FORMS, CALLS = 40, 4, 6, 8, 4
IDLE = range(20)
NOT_FOLLOWED = "kept by a view that is not followed"


def broken(
    program: Program, seeds: range = range(3), checked: dict[str, int] | None = None, run: Any = by_numpy
) -> list[str]:
    subject = Subject(program, seeds, run=run)
    return [f"{program.name}: {fault}" for fault in (*faults(subject), *idle_faults(subject, checked))]


@pytest.mark.slow
def test_predictions_for_the_zoo_hold() -> None:
    assert [fault for name in RUN for fault in broken(PROGRAMS[name])] == []


class Draw(NamedTuple):
    """Random programs: of `count` seeds in every run, of `block` seeds with `more` operations in a long one."""

    program: Callable[..., Program]
    count: int
    block: int
    more: Callable[[int], int]
    run: Any = by_numpy
    seeds: range = range(2)


DRAWS = {
    "programs": Draw(random_program, RANDOM, 100, lambda seed: 15 + seed % 30, seeds=range(3)),
    # Packed tokens and pages.
    "layouts": Draw(random_layout, LAYOUTS, 100, lambda seed: 8 + seed % 16),
    # Tokens, masks and ids after slices, padding and scans.
    "neighbours": Draw(random_neighbours, NEIGHBOURS, 100, lambda seed: 10 + seed % 15),
    # Second rows, masks, counts, arrays that are left out.
    "forms": Draw(random_form, FORMS, 100, lambda seed: 8 + seed % 16),
    # Typed random keys; kernels and callbacks that are declared.
    "calls": Draw(random_calls, CALLS, 50, lambda seed: 8 + seed % 12, by_xla),
}
SLOW = "programs", "calls"


@pytest.mark.parametrize(
    "names", [tuple(name for name in DRAWS if name not in SLOW), pytest.param(SLOW, marks=pytest.mark.slow)]
)
def test_predictions_for_random_programs_hold(names: tuple[str, ...]) -> None:
    for draw in map(DRAWS.__getitem__, names):
        programs = map(draw.program, range(draw.count))
        assert [fault for program in programs for fault in broken(program, draw.seeds, run=draw.run)] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "block"), [(name, block) for name in DRAWS for block in range(50 if name == "programs" else 20)]
)
def test_predictions_for_many_random_programs_hold(name: str, block: int) -> None:
    draw = DRAWS[name]
    first = 100 + draw.block * block
    programs = (draw.program(seed, draw.more(seed)) for seed in range(first, first + draw.block))
    assert [fault for program in programs for fault in broken(program, draw.seeds, run=draw.run)] == []


@pytest.mark.slow
def test_random_layouts_are_varied() -> None:
    facts = Counter[str]()
    for seed in range(LAYOUTS, LAYOUTS + 20):
        predicted = predictions(Subject(random_layout(seed), range(1))).values()
        facts.update(type(value.fact).__name__ for _, _, value, _ in predicted)
    assert all(facts[name] for name in ("SegmentIds", "IndexSum", "Mask", "SameLane", "PageEntry", "TokenSpan")), facts
    patterns = {pattern for pattern, _ in MET}
    assert len(patterns) > 15 and sum(MET[pattern, True] > 0 for pattern in patterns) >= 15, MET


@pytest.mark.slow
def test_random_neighbours_are_varied() -> None:
    facts, owners = Counter[str](), Counter[str]()
    for seed in range(NEIGHBOURS, NEIGHBOURS + 20):
        for _, _, value, _ in predictions(Subject(random_neighbours(seed), range(1))).values():
            facts[type(value.fact).__name__] += 1
            owners[type(value.owner).__name__] += 1
    assert all(facts[name] for name in ("WithinLane", "TokenSpan", "ShiftedIds", "Mask", "IndexSum")), facts
    assert owners["LaneRows"] >= 50 and owners["Mixed"] >= 50, owners


def test_random_calls_are_varied() -> None:
    met = Counter[str]()
    for seed in range(CALLS, CALLS + 12):
        program = random_calls(seed)
        traced = normal_program(program.step, *program.args())
        prover = Prover(program.bound(), observe=lambda eqn, *_: met.update([eqn.primitive.name]))
        walk(prover, traced)
    wanted = "random_split", "random_fold_in", "random_bits", "random_wrap", "random_unwrap", "pure_callback"
    assert all(met[name] for name in (*wanted, "pallas_call")), met


def test_random_forms_are_varied() -> None:
    facts, non_null, intact = Counter[str](), 0, Counter[str]()
    for seed in range(FORMS, FORMS + 20):
        subject = Subject(random_form(seed), range(1))
        for role in ("", "active", "active_count"):
            for _, _, value, _ in predictions(subject, role, counted=role == "active_count").values():
                facts[type(value.fact).__name__] += 1
                non_null += getattr(value.fact, "non_null", False)
                intact[role] += value.intact is not None
    assert facts["Implies"] and non_null and intact["active"] and intact["active_count"], (facts, non_null, intact)


@pytest.mark.long
def test_predictions_for_idle_lanes_hold() -> None:
    """Programs with ranges, shared values and unchanged rows."""
    checked: dict[str, int] = {}
    assert [fault for seed in IDLE for fault in broken(random_program(seed, idle=True), range(2), checked)] == []
    assert all(checked[kind] > 500 for kind in ("kept", "range", "owner", "number", "iota", "slot")), checked
    assert checked.get(NOT_FOLLOWED, 0) < 0.2 * len(IDLE), checked


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_predictions_for_many_programs_with_idle_lanes_hold(block: int) -> None:
    seeds = range(100 * block, 100 + 100 * block)
    assert [fault for seed in seeds for fault in broken(random_program(seed, 15 + seed % 30, idle=True))] == []


@pytest.mark.slow
def test_random_programs_are_varied() -> None:
    met, owners = Counter[str](), Counter[str]()
    for seed in range(RANDOM):
        for equation, _, value, _ in predictions(Subject(random_program(seed), range(1))).values():
            met[equation.primitive.name] += 1
            owners[type(value.owner).__name__] += 1
    assert len(met) >= 25, met
    assert all(owners[name] >= 5 for name in ("Common", "OneLane", "LaneRows", "PoolRows", "Mixed")), owners


def test_a_wrong_prediction_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim rows for other lanes."""
    real = predictions

    def shifted(subject: Subject, idle: str = "", counted: bool = False) -> dict:
        return {
            var: prediction._replace(
                value=prediction.value.replace(owner=LaneRows(prediction.value.owner.axis, start=1))
            )
            if isinstance(prediction.value.owner, LaneRows)
            else prediction
            for var, prediction in real(subject, idle, counted).items()
        }

    monkeypatch.setattr("predicted_owners.predictions", shifted)
    assert any("changed by" in fault for fault in broken(PROGRAMS["rows behind a slot map"]))


def test_a_wrong_prediction_for_idle_lanes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim unchanged rows for every select by the length, and wrong ranges."""
    real = predictions

    def shifted(subject: Subject, idle: str = "", counted: bool = False) -> dict:
        predicted = real(subject, idle, counted)
        for var, prediction in predicted.items() if idle else ():
            value = prediction.value
            if prediction.equation.primitive.name == "tanh":
                predicted[var] = prediction._replace(value=value.replace(intact=UnchangedRows(Leaf(1))))
            elif value.range == (0, 0):
                predicted[var] = prediction._replace(value=value.replace(range=(1, 1)))
        return predicted

    monkeypatch.setattr("idle_predictions.predictions", shifted)
    faults = broken(PROGRAMS["layers over row pools, idle lanes, remat"])
    assert any("outside its range" in fault for fault in faults)
    assert any("its view is" in fault or "is not what the rows" in fault for fault in faults)


def test_a_column_of_columns_is_not_taken_for_what_it_was() -> None:
    """Unchanged rows joined along a new axis: a slice has one axis more."""

    def step(x, rows, lengths):
        intact = jnp.where((lengths > 0)[:, None], x, rows)
        return jnp.stack([intact, x], axis=-1)[..., :1], rows

    def draw(rng):
        rows = rng.normal(size=(2, 3, 4)).astype(np.float32)
        return rows[0], rows[1], np.array([0, 2, 0], np.int32)

    contract = LaneContract((Lane(), Pool("r"), Lane(role="length")), (Lane(), Pool("r")))
    assert broken(Program("column", step, contract, draw)) == []
