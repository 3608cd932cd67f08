"""Steps with mutable arrays compute `jax.jit`'s results; outer mutable arrays are refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo.mutable_arrays import PROGRAMS
from zoo.program import Program

from ir_passes import Lane, LaneContract, compile_step, prove_isolation, rowwise
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.jax_private_refs import without_refs
from ir_passes.jaxpr.tracing import trace_function, trace_of

LANES, WIDTH = 3, 4
CONTRACT = LaneContract((Lane(), Lane()), Lane())
X = np.arange(LANES * WIDTH, dtype=np.float32).reshape(LANES, WIDTH)
STATEFUL = {"new_ref", "ref", "freeze", "get", "swap", "addupdate"}


def names(program: ir.ClosedJaxpr) -> set[str]:
    return {eqn.primitive.name for eqn in ir.all_eqns(program.jaxpr)}


@pytest.mark.parametrize(
    "program", [program for program in PROGRAMS if "packed" not in program.name], ids=lambda p: p.name
)
def test_a_step_computes_the_same_as_jit(program: Program) -> None:
    step, args = program.step, program.args()
    assert names(jax.make_jaxpr(step)(*args)) & STATEFUL
    assert not names(trace_function(step, args).program) & STATEFUL
    expected = jax.tree.leaves(jax.jit(step)(*args))
    compiled = compile_step(step, args, program.contract)
    for a, b in zip(expected, jax.tree.leaves(compiled(*map(jnp.asarray, args))), strict=True):
        np.testing.assert_array_equal(a, b)


def test_programs_without_mutable_arrays_are_not_traced_again() -> None:
    program = jax.make_jaxpr(lambda x: jnp.where(x > 0, x, 0))(X)
    assert without_refs(program) is program
    assert trace_of(program).program is program


def _captured() -> Callable[..., Any]:
    outer = jax.new_ref(jnp.asarray(X))

    def step(x, y):
        outer[...] += x
        return y

    return step


def _argument(ref, y):
    ref[...] += y
    return ref[...]


@pytest.mark.parametrize("captured", [True, False])
def test_mutable_arrays_from_outside_are_refused(captured: bool) -> None:
    step, first = (_captured(), X) if captured else (_argument, jax.new_ref(jnp.asarray(X)))
    with pytest.raises(TypeError, match="make the reference inside the step"):
        prove_isolation(step, (first, X), CONTRACT)


@jax.jit
def reversed_twice(x):
    return x[::-1][::-1]


def test_declared_functions_stay_declared() -> None:
    rowwise(reversed_twice, (Lane(),))

    def step(x, y):
        state = jax.new_ref(x)
        state[...] = reversed_twice(state[...]) + y
        return state[...]

    proof = prove_isolation(step, (X, X), CONTRACT)
    assert any("reversed_twice" in statement.about for statement in proof.assumed)
