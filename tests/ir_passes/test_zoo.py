"""The proof passes every correct step: no false alarms."""

import pytest
from zoo.catalogue import PROGRAMS
from zoo.real_models import real_programs

from ir_passes.lane_proof import prove_isolation


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_the_zoo_is_proved(name: str) -> None:
    program = PROGRAMS[name]
    proof = prove_isolation(program.step, program.args(), program.contract)
    assert proof.lanes == program.bound().lanes


def test_every_step_of_the_models_is_proved() -> None:
    names = [
        program.name for program in real_programs() if prove_isolation(program.step, program.args(), program.contract)
    ]
    assert len(names) == 12
