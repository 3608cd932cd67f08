"""In-place operations that read overwritten values (openxla/xla#49176), by program and result."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from as_for_users import compiled
from jax import lax
from pool_mutations import executable_of

from ir_passes.xla_audit.dataflow import Hazard, in_place_hazards, live_values
from ir_passes.xla_audit.hlo import read

STATE = np.random.default_rng(0).normal(size=(4, 8, 16)).astype(np.float32)
NEW = np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32)
TWO = np.int32(2)


def shifted_rows(x):
    base = x + np.int32(1)
    return lax.dynamic_update_slice(base, base[:3], (1, 0, 0)).reshape((1, 4, 1))


def shifted_matrix(x):
    base = x + np.int32(1)
    return base.at[1:].set(base[:-1]).reshape((1, *base.shape))


def shifted_state(state):
    base = state * 1.5
    return base.at[:, 1:].set(base[:, :-1]).reshape((1, *state.shape))


WRONG: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "rows": (shifted_rows, (np.arange(4, dtype=np.int32).reshape(4, 1, 1),), ()),
    "matrix": (shifted_matrix, (np.arange(128, dtype=np.int32).reshape(8, 16),), ()),
    "state": (shifted_state, (STATE,), ()),
    "donated state": (shifted_state, (STATE,), (0,)),
}


concatenated_shift = lambda state, new: jnp.concatenate([state[:, 1:], new[:, None]], axis=1)
updated_shift = lambda state, new: state.at[:, :-1].set(state[:, 1:]).at[:, -1].set(new)
static_row_update = lambda state: state.at[2:3].multiply(2.0)


def shift_and_reshape(state, new):
    base = state * 1.5
    return base.at[:, :-1].set(base[:, 1:]).at[:, -1].set(new).reshape((state.shape[0], -1))


def row_update(state, row):
    old = lax.dynamic_slice(state, (row, 0, 0), (1, *state.shape[1:]))
    return lax.dynamic_update_slice(state, old * 2.0 + 1.0, (row, 0, 0))


def scaled_row_update(state, row):
    base = state * 1.5
    old = lax.dynamic_slice(base, (row, 0, 0), (1, *state.shape[1:]))
    return lax.dynamic_update_slice(base, old * 2.0 + 1.0, (row, 0, 0)).reshape(-1)


def two_rows(state, row):
    for i in (row, row + 1):
        old = lax.dynamic_slice(state, (i, 0, 0), (1, *state.shape[1:]))
        state = lax.dynamic_update_slice(state, old * 2.0 + 1.0, (i, 0, 0))
    return state


def written_and_read(state, row):
    state = lax.dynamic_update_slice(state, jnp.ones((1, *state.shape[1:])), (row, 0, 0))
    return state, (state * state).sum((1, 2))


RIGHT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "concatenated shift": (concatenated_shift, (STATE, NEW), (0,)),
    "updated shift": (updated_shift, (STATE, NEW), (0,)),
    "shift and reshape": (shift_and_reshape, (STATE, NEW), ()),
    "row update": (row_update, (STATE, TWO), (0,)),
    "static row update": (static_row_update, (STATE,), (0,)),
    "scaled row update": (scaled_row_update, (STATE, TWO), ()),
    "two rows": (two_rows, (STATE, np.int32(1)), (0,)),
    "written and read": (written_and_read, (STATE, TWO), (0,)),
}


def compile_and_compare(case: tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]) -> tuple[list[Hazard], int]:
    """The hazards of a program, and how many elements of its result are wrong."""
    fn, values, donate = case
    with jax.disable_jit():
        expected = jax.tree.leaves(jax.tree.map(np.asarray, fn(*map(jnp.asarray, values))))
    args = [jnp.array(value) for value in values]
    program = compiled(jax.jit(fn, donate_argnums=donate).lower(*args))
    executable = read(program)
    hazards = list(in_place_hazards(executable, live_values(executable)))
    got = jax.tree.leaves(jax.tree.map(np.asarray, program(*args)))
    return hazards, sum(int((~np.isclose(a, b, rtol=1e-5)).sum()) for a, b in zip(got, expected, strict=True))


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # 2026-11: the result has another shape
@pytest.mark.parametrize("name", WRONG)
def test_shift_that_reads_its_own_output_is_found(name: str) -> None:
    hazards, wrong = compile_and_compare(WRONG[name])
    if not wrong and not hazards:
        pytest.skip(f"XLA computes this rightly in jax {jax.__version__}: openxla/xla#49176 is mended here")
    assert wrong, "the audit alarms on a program that computes the right values"
    assert [hazard.through.opcode for hazard in hazards] == ["slice"]
    assert hazards[0].through.source.startswith(__file__)


@pytest.mark.parametrize("name", RIGHT)
def test_right_updates_are_left_alone(name: str) -> None:
    assert compile_and_compare(RIGHT[name]) == ([], 0)


@pytest.mark.parametrize("name", ["row update", "static row update"])
def test_a_read_of_the_same_window_is_what_makes_them_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without equal windows these programs read the bytes that they write."""
    monkeypatch.setattr("ir_passes.xla_audit.dataflow.in_place._Reads._window", lambda *_: ((object(),), (), ()))
    hazards, wrong = compile_and_compare(RIGHT[name])
    assert (len(hazards), wrong) == (1, 0)


NARROWER = """
fused {{
  q = f32[8]{{0}} parameter(0)
  ROOT half = {dtype}[8]{{0}} convert(q)
}}
ENTRY main {{
  pool = f32[8]{{0}} parameter(0)
  new = f32[8]{{0}} negate(pool)
  result = {dtype}[8]{{0}} {operation}
  ROOT out = (f32[8]{{0}}, {dtype}[8]{{0}}) tuple(pool, result)
}}"""


@pytest.mark.parametrize("operation", ["convert(new)", "fusion(new), kind=kLoop, calls=fused"])
@pytest.mark.parametrize(("dtype", "hazards"), [("f16", 1), ("f64", 1), ("s32", 0)])
def test_elements_of_another_width_are_not_written_over_their_operands(
    dtype: str, hazards: int, operation: str
) -> None:
    executable = executable_of(NARROWER.format(dtype=dtype, operation=operation))
    ids = {instruction.name: number for number, instruction in executable.module.instructions.items()}
    place = executable.buffers.slices[ids["new"], ()]
    slices = {**executable.buffers.slices, (ids["result"], ()): place}
    executable = replace(executable, buffers=replace(executable.buffers, slices=slices))
    assert len(list(in_place_hazards(executable, live_values(executable)))) == hazards
