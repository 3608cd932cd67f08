"""Functions computed in one byte arena: the same bits with and without reuse."""

import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena_executor import execute
from arena_programs import PROGRAMS, apart
from zoo.catalogue import PROGRAMS as ZOO

from ir_passes.scratch import planner
from ir_passes.scratch.liveness import Liveness
from ir_passes.scratch.planner import plan


def same_bits(rest, right) -> bool:
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(rest, right, strict=True))


def check_reuse(fn, args, rtol: float, atol: float) -> None:
    """The same bits as where nothing is shared, and XLA's results within rounding."""
    with mock.patch.object(planner, "pack", apart):
        naive = execute(plan(fn, args), args)
    assert same_bits(execute(plan(fn, args), args), naive)
    for actual, expected in zip(naive, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", PROGRAMS)
def test_reuse_changes_no_bit(name: str) -> None:
    program = PROGRAMS[name]
    check_reuse(program.fn, program.args(4), rtol=1e-5, atol=1e-6)


ONE_DEVICE = [name for name, program in ZOO.items() if not name.startswith("sharded") and not program.opaque]
"""The executor has one arena, and calls no foreign kernels."""
SOME = ("mamba2, vmapped",)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(x, marks=() if x in SOME else pytest.mark.long) for x in ONE_DEVICE])
def test_reuse_changes_no_bit_of_the_zoo(name: str) -> None:
    # sums of few float32 numbers in another order, as where numpy runs them
    check_reuse(ZOO[name].step, ZOO[name].args(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_branch_runs_in_its_own_part(number: int) -> None:
    program = PROGRAMS["branch"]
    args = (program.args(4)[0], np.int32(number))
    (result,) = execute(plan(program.fn, args), args)
    np.testing.assert_allclose(result, program.fn(*args)[0], rtol=1e-5)


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_a_loop_runs_as_often_as_its_condition_says(bound: int) -> None:
    program = PROGRAMS["loop"]
    args = (program.args(4)[0], np.int32(bound))
    (result,) = execute(plan(program.fn, args), args)
    np.testing.assert_allclose(result, program.fn(*args)[0], rtol=1e-5)


def test_constants_inputs_and_outputs_stay_where_the_caller_has_them() -> None:
    table = np.arange(8, dtype=np.float32)
    fn = lambda x: (x, jnp.asarray(table) + x, jnp.exp(x).reshape(2, 4), 3.0)
    x = np.ones(8, np.float32)
    result = plan(fn, (x,))
    assert result.size == 0
    output = execute(result, (x,))
    assert [value.shape for value in output] == [(8,), (8,), (2, 4), ()]
    np.testing.assert_array_equal(output[1], table + 1)
    np.testing.assert_array_equal(x, 1)


@pytest.mark.slow
def test_every_dtype_survives_the_bytes() -> None:
    def fn(x):
        parts = [(x * 3).astype(t) for t in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.bool_, jnp.uint16)]
        bits = jax.lax.bitcast_convert_type(x + 1, jnp.int32)
        return sum(part.astype(jnp.float32) for part in parts) + bits.astype(jnp.float32) * 1e-9

    x = np.linspace(0, 3, 12, dtype=np.float32)
    (result,) = execute(plan(fn, (x,)), (x,))
    np.testing.assert_allclose(result, fn(jnp.asarray(x)), rtol=1e-6)


def test_a_model_that_liveness_and_verifier_share_is_seen_to_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """If liveness and verifier both treated a transpose as a view, every plan would pass."""
    liveness = sys.modules[Liveness.__module__]
    right = liveness.is_view
    monkeypatch.setattr(liveness, "is_view", lambda eqn: eqn.primitive.name == "transpose" or right(eqn))
    with pytest.raises(AssertionError):
        check_reuse(lambda x: ((x + 1).T * 2,), (np.arange(12, dtype=np.float32).reshape(3, 4),), rtol=1e-5, atol=0)
