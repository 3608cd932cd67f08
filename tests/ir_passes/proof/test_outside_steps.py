"""Steps in outsiders' style: leaks are refused, and refused correct steps are listed."""

from contextlib import nullcontext

import jax
import numpy as np
import pytest
from engine_steps import NOT_PROVED, STEPS

from ir_passes import IsolationError, Packed, prove_isolation

OF_NAME = {step.name: step for step in STEPS}


@pytest.mark.parametrize("name", [step.name for step in STEPS])
def test_verdicts_of_outside_steps(name: str) -> None:
    step = OF_NAME[name]
    refused = pytest.raises(IsolationError) if step.leaks or name in NOT_PROVED else nullcontext()
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), refused:
        prove_isolation(step.run, step.args, step.contract)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_PROVED)
def test_a_false_alarm_has_a_proved_respelling(name: str) -> None:
    step, respelled = OF_NAME[name], OF_NAME[NOT_PROVED[name].respelling]
    assert not (step.leaks or respelled.leaks or respelled.name in NOT_PROVED)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        results = [np.asarray(each.run(*step.args)) for each in (step, respelled)]
    real = slice(int(step.args[1][-1])) if step.contract.outputs == Packed() else slice(None)
    np.testing.assert_allclose(*(result[real] for result in results), rtol=1e-5)
