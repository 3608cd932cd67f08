"""Every rule is sound on random operations, and not always "mixed".

One lane at a time is changed, for operands of every ownership; variables inside loops and branches are compared too.
Claims about lanes of length 0 are compared for these lanes, with operands that are rows they keep.
"""

from collections import Counter

import pytest
from idle_predictions import idle_faults
from instances.catalogue import BUILDERS, installed, instance
from instances.meshes import BUILDERS as MESHES
from jaxpr_mutation import Subject
from numpy_interpreter import in_numpy
from predicted_owners import faults, predictions
from xla_equations import apply

from ir_passes.jaxpr import ir, primitives
from ir_passes.proof.owners import LaneRows, OneLane, PoolRows
from ir_passes.proof.registry import RULES

OWNED = (LaneRows, OneLane, PoolRows)
NOT_TRIED = {
    **dict.fromkeys(MESHES, "test_mesh_instances"),
    **dict.fromkeys(
        "all_gather_invariant pbroadcast psum_invariant pvary".split(), "forms of those that test_mesh_instances tries"
    ),
    **dict.fromkeys(
        "reshard sharding_constraint layout_constraint device_put".split(),
        "of meshes and placements, not run on a CPU or without an effect there: the sharded programs and their mutants",
    ),
    **dict.fromkeys(
        primitives.OPAQUE,
        "believed as declared, not looked into: tests of declarations",
    ),
    **dict.fromkeys(
        "uninitialized kernel_index kernel_padding or_old".split(),
        "of kernels: tests/ir_passes/kernels and their mutants",
    ),
    **dict.fromkeys("closed_call core_call eval_jaxpr pjit remat2".split(), "other names of calls that are tried"),
    "custom_linear_solve": "interprets its program: test_lane_loops",
    **dict.fromkeys("create_token empty empty2 platform_index".split(), "nobody's: has no operands"),
    **dict.fromkeys(
        "igamma igamma_grad_a igammac random_gamma threefry2x32 threefry4x32 philox2x32 "
        "philox4x32 random_bits random_split random_fold_in lu lu_pivots_to_permutation triangular_solve tridiagonal "
        "tridiagonal_solve".split(),
        "long to compile: tried with the long tests",
    ),
}
"""Rules without a random instance in every run, and why."""
NEVER_NARROW = {"iota": "has no operands"}
ALSO = {"checkpoint": ("checkpoint", "remat2")}
"""Names of one primitive in different versions of JAX."""
ONLY_LONG = [name for name in BUILDERS if name in NOT_TRIED and name not in MESHES]
TRIED = [name for name in BUILDERS if installed(name) and name not in NOT_TRIED]
ENOUGH = 12
"""Instances until one must have had a narrow prediction."""


def narrow(subject: Subject, name: str) -> bool:
    """Whether an operand belongs to lanes and the rule gives the lanes of the result."""
    return any(
        prediction.equation.primitive.name in ALSO.get(name, (name,))
        and any(isinstance(operand.owner, OWNED) for operand in prediction.operands)
        and isinstance(prediction.value.owner, OWNED)
        for prediction in predictions(subject).values()
    )


def subject_of(name: str, seed: int) -> Subject:
    return Subject(instance(name, seed), (0,), run=apply)


@pytest.mark.parametrize("name", TRIED)
def test_a_narrow_prediction_holds(name: str) -> None:
    for seed in range(ENOUGH):
        subject = subject_of(name, seed)
        assert list(faults(subject)) == [], seed
        if name in NEVER_NARROW or narrow(subject, name):
            return
    raise AssertionError(f"{ENOUGH} instances of {name!r}, and the rule calls every result of lanes mixed")


@pytest.mark.parametrize("name", [*filter(in_numpy, TRIED)])
def test_what_is_said_of_idle_lanes_holds(name: str) -> None:
    assert list(idle_faults(Subject(instance(name, 0, with_idle=True), (0,), run=apply))) == []


@pytest.mark.long
@pytest.mark.parametrize("name", TRIED)
def test_much_that_is_said_of_idle_lanes_holds(name: str) -> None:
    for seed in range(60 if in_numpy(name) else 3):
        subject = Subject(instance(name, seed, with_idle=True), (0,), run=apply)
        assert list(idle_faults(subject)) == [], seed


def test_every_rule_is_tried() -> None:
    assert set(RULES) - set(BUILDERS) <= set(NOT_TRIED)
    assert {name for name in BUILDERS if not installed(name)} - set(MESHES) <= {
        "log2",
        "one_minus_square",
        "polynomial",
    }


@pytest.mark.long
@pytest.mark.parametrize("name", [*TRIED, *filter(installed, ONLY_LONG)])
def test_many_predictions_hold(name: str) -> None:
    seeds = range(ENOUGH, ENOUGH + (60 if in_numpy(name) else 6))
    counts = Counter[bool]()
    for seed in seeds:
        subject = subject_of(name, seed)
        assert list(faults(subject)) == [], seed
        counts[narrow(subject, name)] += 1
    assert counts[True] or name in NEVER_NARROW, f"{counts.total()} instances of {name!r}, every result mixed"


def test_variables_inside_loops_are_looked_at() -> None:
    subject = subject_of("scan", 1)
    predicted = [
        prediction for var, prediction in predictions(subject).items() if prediction.body and subject.turns.get(var)
    ]
    assert len(predicted) >= 3
    assert all(isinstance(prediction.equation, ir.JaxprEqn) for prediction in predicted)
