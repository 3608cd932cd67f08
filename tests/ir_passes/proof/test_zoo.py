"""The proof passes every correct step: no false alarms."""

import pytest
from zoo.catalogue import PROGRAMS
from zoo.program import Program
from zoo.real_models import MODELS, steps

from ir_passes import Assumption
from ir_passes.proof.lane_proof import Proof, prove_isolation


def prove(program: Program) -> Proof:
    proof = prove_isolation(program.step, program.args(), program.contract)
    assert proof.lanes == program.bound().lanes, program.name
    return proof


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_the_zoo_is_proved(name: str) -> None:
    prove(PROGRAMS[name])


def test_rows_that_are_declared_disjoint_are_assumed() -> None:
    assumed = prove(PROGRAMS["snapshot beside the running state"]).assumed
    assert [statement.about for statement in assumed if statement.id == Assumption.DISJOINT_ROWS] == ["args[3]"]


def prove_steps(model: str, all_lanes: bool) -> None:
    """Prove each step, and its one-lane form under `vmap` without pages."""
    for step in steps(model, all_lanes, mapped=True):
        prove(step)


@pytest.mark.slow
def test_steps_of_a_model_are_proved() -> None:
    prove_steps("sparse_base", all_lanes=False)
    prove_steps("mamba2_base", all_lanes=False)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_every_step_of_every_model_is_proved(model: str) -> None:
    prove_steps(model, all_lanes=True)
