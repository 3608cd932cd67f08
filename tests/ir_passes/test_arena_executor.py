"""Functions computed in one byte arena: the same bits with and without reuse, and wrong plans show."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena_programs import MUTANTS, PROGRAMS, mutant_plan
from zoo.catalogue import PROGRAMS as ZOO

from ir_passes.arena import plan
from ir_passes.arena_executor import ArenaError, execute


def same_bits(left, right) -> bool:
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


def check_reuse(fn, args, rtol: float, atol: float) -> None:
    """The same bits under every planner, and XLA's results within rounding."""
    naive = execute(plan(fn, args, planner="naive", redzone=64), args)
    for planner, redzone in (("best-fit", 0), ("search", 64)):
        assert same_bits(execute(plan(fn, args, planner=planner, redzone=redzone), args), naive), planner
    for found, expected in zip(naive, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", PROGRAMS)
def test_reuse_changes_no_bit(name: str) -> None:
    program = PROGRAMS[name]
    check_reuse(program.fn, program.args(4), rtol=1e-5, atol=1e-6)


ONE_DEVICE = [name for name, program in ZOO.items() if not name.startswith("sharded") and not program.opaque]
"""The executor has one arena, and calls no foreign kernels."""
SOME = ("mamba2, vmapped",)


@pytest.mark.parametrize("name", [pytest.param(x, marks=() if x in SOME else pytest.mark.long) for x in ONE_DEVICE])
def test_reuse_changes_no_bit_of_the_zoo(name: str) -> None:
    # sums of few float32 numbers in another order, as where numpy runs them
    check_reuse(ZOO[name].step, ZOO[name].args(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_every_branch_runs_in_its_own_part(which: int) -> None:
    program = PROGRAMS["branch"]
    args = (program.args(4)[0], np.int32(which))
    (found,) = execute(plan(program.fn, args), args)
    np.testing.assert_allclose(found, program.fn(*args)[0], rtol=1e-5)


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_a_loop_runs_as_often_as_its_condition_says(bound: int) -> None:
    program = PROGRAMS["loop"]
    args = (program.args(4)[0], np.int32(bound))
    (found,) = execute(plan(program.fn, args), args)
    np.testing.assert_allclose(found, program.fn(*args)[0], rtol=1e-5)


def test_constants_inputs_and_outputs_stay_where_the_caller_has_them() -> None:
    table = np.arange(8, dtype=np.float32)

    def fn(x):
        return x, jnp.asarray(table) + x, jnp.exp(x).reshape(2, 4), 3.0

    x = np.ones(8, np.float32)
    made = plan(fn, (x,))
    assert made.size == 0
    found = execute(made, (x,))
    assert [value.shape for value in found] == [(8,), (8,), (2, 4), ()]
    np.testing.assert_array_equal(found[1], table + 1)
    np.testing.assert_array_equal(x, 1)


def test_every_dtype_survives_the_bytes() -> None:
    def fn(x):
        parts = [(x * 3).astype(t) for t in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.bool_, jnp.uint16)]
        bits = jax.lax.bitcast_convert_type(x + 1, jnp.int32)
        return sum(part.astype(jnp.float32) for part in parts) + bits.astype(jnp.float32) * 1e-9

    x = np.linspace(0, 3, 12, dtype=np.float32)
    (found,) = execute(plan(fn, (x,)), (x,))
    np.testing.assert_allclose(found, fn(jnp.asarray(x)), rtol=1e-6)


@pytest.mark.parametrize(("mutant", "name"), [(mutant, name) for mutant, names in MUTANTS.items() for name in names])
def test_shows_the_planner_with(mutant: str, name: str, monkeypatch) -> None:
    program = PROGRAMS[name]
    args = program.args(4)
    expected = execute(mutant_plan("none", name, 4, monkeypatch, redzone=64), args)
    wrong = mutant_plan(mutant, name, 4, monkeypatch, redzone=64)
    try:
        shown = not same_bits(execute(wrong, args), expected)
    except ArenaError:
        shown = True
    assert shown


def test_names_the_equation_that_writes_into_a_redzone(monkeypatch) -> None:
    program = PROGRAMS["view"]
    wrong = mutant_plan("size for one lane", "view", 4, monkeypatch, redzone=64)
    with pytest.raises(ArenaError, match=r"equation 0 \(exp, .*arena_programs.py:\d+\) wrote into the redzone behind"):
        execute(wrong, program.args(4))


def test_refuses_to_write_behind_the_arena() -> None:
    x = np.ones(32, np.float32)
    made = plan(lambda x: jnp.sin(x + 1) * 2, (x,))
    with pytest.raises(ArenaError, match="end behind the arena's 64"):
        execute(replace(made, size=64), (x,))


def test_freed_bytes_are_poison() -> None:
    x = np.ones(32, np.float32)
    made = plan(lambda x: jnp.sin(x + 1) * 2, (x,), planner="naive")
    early = tuple(replace(p, end=p.start) for p in made.placements)
    (found,) = execute(replace(made, placements=early), (x,))
    assert np.isnan(found).all()


def test_results_are_poison_before_the_operands_are_read() -> None:
    x = np.ones(32, np.float32)
    made = plan(lambda x: jnp.sin(x + 1) * 2, (x,), planner="naive")
    assert [p.name for p in made.placements] == ["add.0", "sin.1"]
    onto = tuple(replace(p, offset=0, end=9) for p in made.placements)
    (found,) = execute(replace(made, placements=onto), (x,))
    assert not np.isclose(found, np.sin(2.0) * 2).any()
