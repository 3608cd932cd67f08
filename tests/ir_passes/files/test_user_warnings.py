"""Warnings point at the user's line."""

import inspect

import jax.numpy as jnp
import pytest

import hybridlm
from hybridlm.compiler import CertificationWarning, Lane, LaneContract, compile_step


def line_of(source: str) -> int:
    """Return the number of the only line of this file that begins with `source`."""
    lines = inspect.getsource(inspect.getmodule(line_of) or line_of).splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.strip().startswith(source))
    return number


def test_a_refused_step_warns_at_the_call_that_compiles_it():
    contract = LaneContract((Lane(),), Lane())
    with pytest.warns(CertificationWarning) as warned:
        compile_step(lambda x: x[::-1], (jnp.ones((4, 2)),), contract, certify="warn")
    assert {(warning.filename, warning.lineno) for warning in warned} == {(__file__, line_of("compile_step(lambda"))}


@pytest.mark.slow
def test_a_preempted_sequence_warns_at_the_call_that_generates():
    lm = hybridlm.load(hybridlm.demo.path(), lanes=2, context=512, cache=512)
    with pytest.warns(UserWarning, match="preempted") as warned:
        lm.generate(["Once", "Twice"], max_tokens=300, ignore_eos=True)
    assert [(warning.filename, warning.lineno) for warning in warned] == [(__file__, line_of("lm.generate(["))]
