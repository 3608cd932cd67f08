"""Steps in outsiders' style: leaks are refused, and refused correct steps are listed."""

from contextlib import nullcontext

import jax
import pytest
from outside_steps import NOT_PROVED, STEPS

from ir_passes import IsolationError, prove_isolation


@pytest.mark.parametrize("name", [step.name for step in STEPS])
def test_verdicts_of_outside_steps(name: str) -> None:
    (step,) = (step for step in STEPS if step.name == name)
    refused = pytest.raises(IsolationError) if step.leaks or name in NOT_PROVED else nullcontext()
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), refused:
        prove_isolation(step.run, step.args, step.contract)
