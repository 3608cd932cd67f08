"""The tests' ground truth: every zoo program is clean, planted leaks are found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from isolation_oracle import leaks
from numpy_interpreter import NotInNumpy, evaluate
from zoo import gated_delta, rows
from zoo.catalogue import PROGRAMS, THEMES
from zoo.program import SLOTS, Program
from zoo.real_models import program, shapes

from ir_passes.jaxpr import ir

BASE = PROGRAMS["null rows written back"]
IDLE = PROGRAMS["idle rows written back"]


MODELS = "sparse_base mamba2_base kimi_base lfm2_base minimax_base indexed_base gigachat_base alice_base".split()
"""Models with every kind of state, residual streams and sources."""

FIRST = {theme.PROGRAMS[0].name for theme in THEMES}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.long]) for name in PROGRAMS]
)
def test_program_of_the_zoo_is_clean(name: str) -> None:
    """No code of the packages takes part in it; the long run has all."""
    program = PROGRAMS[name]
    assert leaks(program.step, program.contract, program.draw) == []


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_the_zoo_is_clean_as_compiled(name: str) -> None:
    program = PROGRAMS[name]
    assert leaks(program.step, program.contract, program.draw, seeds=range(8), compiled=True) == []


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_steps_of_the_models_are_clean_as_compiled(model: str) -> None:
    for shape in shapes(model):
        item = program(model, shape)
        assert leaks(item.step, item.contract, item.draw, compiled=True) == [], item.name


def agree(program: Program) -> bool:
    """Return whether numpy runs the program; its results must equal XLA's."""
    args = [program.args(seed) for seed in range(2)]
    traced = ir.trace(program.step, *args[0])
    leaves = [np.stack(leaves) for leaves in zip(*map(jax.tree.leaves, args), strict=True)]
    try:
        result = evaluate(traced, leaves)
    except NotInNumpy:
        return False
    compiled = jax.jit(program.step)
    for i, each in enumerate(args):
        for array, reference in zip(result, jax.tree.leaves(compiled(*each)), strict=True):
            # sums of few float32 numbers in another order
            np.testing.assert_allclose(array[i], reference, rtol=2e-4, atol=2e-5)
            assert array.dtype == reference.dtype
    return True


@pytest.mark.parametrize("name", ["chunk, token by token", "sorted experts, scattered back", "attention, row pools"])
def test_numpy_computes_what_xla_does(name: str) -> None:
    assert agree(PROGRAMS[name])


@pytest.mark.long
def test_numpy_computes_what_xla_does_for_the_whole_zoo() -> None:
    ran = {name: agree(program) for name, program in PROGRAMS.items()}
    assert all(ran[name] or name.startswith("sharded") for name in ran), ran


@pytest.mark.parametrize("mode", ["fill", "clip", "drop", "promise_in_bounds"])
def test_numpy_treats_bad_indices_as_xla_does(mode: str) -> None:
    index = np.array([[0, 3], [-1, 1], [4, 9], [-7, 2]], np.int32)

    def step(x, rows):
        where = x.at[rows[:, 0], rows[:, 1]]
        slid = jax.lax.dynamic_slice(x, tuple(rows[2]), (2, 2))
        x = jax.lax.dynamic_update_slice(x, slid, tuple(rows[3]))
        read = where.get(mode=mode) if mode != "promise_in_bounds" else where.get()
        return read, x.at[rows[:, 0]].set(jnp.ones((4, 4)), mode=mode), x.at[rows[:, 1], 0].add(2.0), slid

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    results = evaluate(ir.trace(step, x, index), [np.stack([x, -x]), np.stack([index, index[::-1]])])
    for run, args in enumerate([(x, index), (-x, index[::-1])]):
        for actual, reference in zip(results, jax.jit(step)(*args), strict=True):
            np.testing.assert_array_equal(actual[run], reference)


def seen(program: Program, **changes: object) -> set[str]:
    changed = program.but(**changes)
    return {
        leak.place.split(", row")[0].split(", lane")[0] for leak in leaks(changed.step, changed.contract, changed.draw)
    }


def test_output_of_the_neighbour() -> None:
    def step(pool, slots, x, w):
        y, pool = rows.null_row_step(pool, slots, x, w)
        return jnp.roll(y, 1, axis=0), pool

    assert seen(BASE, step=step) == {"result[0]"}


def test_row_of_the_neighbour() -> None:
    def step(pool, slots, x, w):
        y, pool = rows.null_row_step(pool, jnp.roll(slots, 1), x, w)
        return y, pool

    assert seen(BASE, step=step) == {"result[0]", "result[1]"}


def test_row_of_no_lane() -> None:
    def step(pool, slots, x, w):
        y, pool = rows.null_row_step(pool, slots, x, w)
        return y, pool.at[jnp.where(slots == 0, SLOTS - 1, slots)].multiply(2.0)

    result = leaks(step, BASE.contract, BASE.draw)
    assert result
    assert all(leak.place.startswith(("result[1], row 8", "result[0]")) for leak in result)


def test_row_of_an_idle_lane() -> None:
    def step(pool, slots, x, w, lengths):
        y, pool = rows.masked_step(pool, slots, x, w, lengths)
        return y, pool.at[slots].add(0.5 * (lengths == 0).astype(jnp.float32)[:, None, None])

    result = leaks(step, IDLE.contract, IDLE.draw)
    assert result
    assert all("that had to stay as it was" in leak.place for leak in result)


def test_influence_that_only_nan_shows() -> None:
    """A product with a one-hot matrix: zero times the others' rows."""

    def step(pool, slots, x, w):
        y, pool = rows.null_row_step(pool, slots, x, w)
        return jnp.eye(len(slots)) @ y, pool

    result = leaks(step, BASE.contract, BASE.draw)
    assert result
    assert all(leak.change.startswith(("NaN", "strange")) for leak in result)


def test_null_rows_are_outside_the_promise() -> None:
    def step(pool, slots, x, w):
        y, pool = rows.null_row_step(pool, slots, x, w)
        return y, pool.at[0].set(x.sum())

    assert leaks(step, BASE.contract, BASE.draw) == []


def test_draws_differ() -> None:
    """Other slot maps, padding lanes, the last row, idle lanes."""
    maps = np.stack([gated_delta.draw(np.random.default_rng(seed))[2] for seed in range(8)])
    assert len(np.unique(maps, axis=0)) == 8
    assert (maps == 0).any()
    assert (maps == SLOTS - 1).any()
