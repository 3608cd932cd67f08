"""Every parameter of every operation is read, ignored for a reason, or refused.

W1 of the proof: `reshape` counted as row-major with any `dimensions`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derived_programs import mapped_over_heads, mapped_over_lanes
from instances.catalogue import BUILDERS, MISFITS, NoInstance, installed, instance
from instances.meshes import BUILDERS as MESHES
from jax import Array, lax
from jaxpr_mutation import Subject
from predicted_owners import faults
from traced_programs import normal_equations
from xla_equations import apply
from zoo.program import Program

from ir_passes import Assumption, IsolationError, Lane, LaneContract, Pool, Shared, SlotMap, prove_isolation
from ir_passes.jaxpr import ir
from ir_passes.proof.registry import PARAMETERS, RULES, Parameters
from ir_passes.proof.violations import ViolationKind

CANNOT_RUN = ("threefry2x32",)
"""Their batched form, of operands with different shapes, is one that JAX itself fails to compile."""
NAMES = [name for name in BUILDERS if installed(name) and name not in MESHES and name not in CANNOT_RUN]
OFTEN = "reshape transpose broadcast_in_dim gather scatter scatter-add dot_general conv_general_dilated sort".split()
"""Primitives that most steps are made of; long parameters are all."""
PASSED_ON = 6
"""Seed of a branch that passes its operands on: JAX leaves it no results."""


def unknown_parameters(program: ir.ClosedJaxpr) -> set[str]:
    return {
        f"{eqn.primitive.name}: {name}"
        for eqn in normal_equations(program)
        if eqn.primitive.name in RULES and (name := PARAMETERS[eqn.primitive.name].unknown(eqn.params)) is not None
    }


def derived(name: str, seed: int) -> list[Program]:
    """Yield programs that JAX derives from an instance by batching or differentiation."""
    programs = []
    for program in (*mapped_over_lanes(name, seed), mapped_over_heads(name, seed)):
        try:
            jax.eval_shape(program.step, *program.args())
        except (NoInstance, *MISFITS):
            continue
        programs.append(program)
    return programs


def test_every_rule_says_which_parameters_it_knows() -> None:
    assert set(PARAMETERS) == set(RULES)


@pytest.mark.parametrize("name", [*BUILDERS])
def test_every_parameter_of_an_instance_is_known(name: str) -> None:
    if installed(name):
        source = instance(name, 0)
        assert unknown_parameters(ir.trace(source.step, *source.args())) == set()


def one_nan(eqn: ir.JaxprEqn, values: Any, observe: Any = None) -> list[Any]:
    """Return results with one NaN: numpy's choice of two NaN depends on its vectors."""
    results = apply(eqn, values, observe)
    inexact = [np.issubdtype(np.asarray(each).dtype, np.inexact) for each in results]
    return [np.where(np.isnan(each), np.nan, each).astype(each.dtype) if is_float else each
            for each, is_float in zip(results, inexact, strict=True)]  # fmt: skip


@pytest.mark.parametrize("name, seeds", [
    *(pytest.param(name, range(2), marks=pytest.mark.slow) for name in OFTEN),
    pytest.param("cond", (PASSED_ON,), marks=pytest.mark.slow),
    *(pytest.param(name, range(12), marks=pytest.mark.long) for name in NAMES),
])  # fmt: skip
def test_what_is_said_of_batched_and_differentiated_operations_holds(name: str, seeds: Iterable[int]) -> None:
    for seed in seeds:
        for program in derived(name, seed):
            assert unknown_parameters(ir.trace(program.step, *program.args())) == set(), program.name
            assert list(faults(Subject(program, (0,), run=one_nan))) == [], program.name


def test_a_parameter_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = PARAMETERS["cumsum"]
    monkeypatch.setitem(PARAMETERS, "cumsum", Parameters(parameters.reads - {"axis"}, parameters.ignores))
    with pytest.raises(IsolationError) as error:
        prove_isolation(lambda x: (jnp.cumsum(x, 1),), (np.ones((4, 3)),), LaneContract((Lane(),), (Lane(),)))
    (violation,) = error.value.violations
    assert (violation.kind, violation.primitive) == (ViolationKind.UNKNOWN, "cumsum")
    assert "axis=1" in violation.message


N, D = 4, 6
LAYERS: dict[str, tuple[Callable[[Array], Any], bool]] = {
    "ravel of lanes in Fortran's order": (lambda x: x.ravel(order="F").reshape(x.shape), False),
    "reshape that transposes": (lambda x: lax.reshape(x, x.shape, dimensions=(1, 0)), False),
    "trailing axes in Fortran's order": (lambda x: x.reshape(N, 2, -1, order="F"), True),
    "lanes split in Fortran's order": (lambda x: x.reshape(2, -1, order="F").reshape(x.shape), False),
    "each lane in Fortran's order": (jax.vmap(lambda row: row[:4].reshape(2, 2, order="F").ravel()), True),
    "transposed back by a reshape": (lambda x: lax.reshape(x.T, x.shape, dimensions=(1, 0)), True),
    "reversed sum within lanes": (lambda x: lax.cumsum(x, axis=1, reverse=True), True),
    "reversed sum over lanes": (lambda x: lax.cumsum(x, axis=0, reverse=True), False),
    "sorted by two keys within lanes": (lambda x: lax.sort((x, -x), dimension=1, num_keys=2)[1], True),
    "rolled within lanes": (lambda x: jnp.roll(x, 1, axis=1), True),
    "rolled over lanes": (lambda x: jnp.roll(x, 1, axis=0), False),
    "norm of columns": (lambda x: x / jnp.linalg.norm(x, axis=0, keepdims=True), False),
    "gradient through a transposing reshape": (
        lambda x: jax.grad(lambda y: jnp.sum(jnp.tanh(y.reshape(N, -1, 2, order="F")) ** 2))(x), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("width", [D, N])
def test_layers_of_numpy(name: str, width: int) -> None:
    """Widths with and without an axis as long as lanes; disturbed lanes decide."""
    layer, isolated = LAYERS[name]
    contract = LaneContract((Lane(),), (Lane(),))
    program = Program(name, lambda x: (layer(x),), contract, lambda rng: (rng.normal(size=(N, width)),))
    if jax.eval_shape(layer, *program.args()).shape[0] != N:
        pytest.fail("the layer does not give back its lanes")
    assert list(faults(Subject(program, (0, 1), run=apply))) == []
    x = program.args()[0]
    other = x.copy()
    other[1] += 1
    changed = np.asarray(layer(x)) != np.asarray(layer(other))
    assert isolated == (not np.delete(changed, 1, 0).any())
    try:
        prove_isolation(program.step, program.args(), contract)
    except IsolationError as error:
        assert not isolated
        assert all(violation.source.startswith(__file__) for violation in error.violations)
    else:
        assert isolated


def convolved(x: Array, w: Array, out_axis: int) -> Array:
    """Return a convolution with a kernel for each lane."""
    each = lambda a, b: lax.conv_general_dilated(a, b, (1,), [(1, 0)])
    return jax.vmap(each, in_axes=(0, 0), out_axes=out_axis)(x, w)


@pytest.mark.parametrize("out_axis", [0, 1])
def test_a_convolution_that_is_mapped_over_lanes(out_axis: int) -> None:
    """Batched over both operands it is one grouped convolution; four heads hide a transpose."""
    args = np.ones((4, 4, 3, 5), np.float32), np.ones((4, 3, 3, 2), np.float32)
    contract = LaneContract((Lane(0), Lane(0)), (Lane(0),))
    program = Program(
        "convolution", lambda x, w: (convolved(x, w, out_axis),), contract,
        lambda rng: tuple(rng.normal(size=each.shape).astype(np.float32) for each in args),
    )  # fmt: skip
    assert list(faults(Subject(program, (0,), run=apply))) == []
    if out_axis:
        with pytest.raises(IsolationError):
            prove_isolation(program.step, args, contract)


def test_depthwise_convolutions_over_heads_and_channels_are_proved() -> None:
    """F1: the batching rule's reshapes with `dimensions` keep the lanes where they are."""

    def step(x: Array, w: Array) -> Any:
        each = lambda a, b: lax.conv_general_dilated(a, b, (1,), [(3, 0)])
        return (jax.vmap(jax.vmap(each, in_axes=(3, 0), out_axes=3), in_axes=(3, 0), out_axes=3)(x, w),)

    args = np.ones((N, 1, 5, 2, 6), np.float32), np.ones((2, 6, 1, 1, 4), np.float32)
    prove_isolation(step, args, LaneContract((Lane(), Shared()), (Lane(),)))


STATE = Pool("s", dims=("slot", "key", "value"))
SQUARE = LaneContract((STATE, SlotMap("s", size=9)), (STATE,))
SQUARE_ARGS = np.ones((9, 5, 5), np.float32), np.array([3, 1, 7, 5], np.int32)


def test_a_labelled_state_that_is_transposed_by_a_reshape_is_refused() -> None:
    def step(pool: Array, slots: Array, turns: int) -> Any:
        state = jnp.tanh(pool[slots])
        for _ in range(turns):
            state = lax.reshape(state, state.shape, dimensions=(0, 2, 1))
        return (pool.at[slots].set(state),)

    prove_isolation(lambda pool, slots: step(pool, slots, 2), SQUARE_ARGS, SQUARE)
    with pytest.raises(IsolationError) as error:
        prove_isolation(lambda pool, slots: step(pool, slots, 1), SQUARE_ARGS, SQUARE)
    assert {violation.kind for violation in error.value.violations} == {ViolationKind.DIMENSIONS}


INDEXED = LaneContract((Lane(), Lane()), (Lane(),))
INDEXED_ARGS = np.ones((N, 7), np.float32), np.zeros((N, 3), np.int32)


@pytest.mark.parametrize("sorted", [False, True])
def test_indices_of_lanes_are_not_sorted_because_the_program_says_so(sorted: bool) -> None:
    def read(x: Array, indices: Array) -> Any:
        return (jax.vmap(lambda row, i: row.at[i].get(indices_are_sorted=sorted, mode="clip"))(x, indices),)

    def write(x: Array, indices: Array) -> Any:
        return (jax.vmap(lambda row, i: row.at[i].set(2.0, indices_are_sorted=sorted))(x, indices),)

    for step in (read, write):
        if not sorted:
            prove_isolation(step, INDEXED_ARGS, INDEXED)
            continue
        with pytest.raises(IsolationError) as error:
            prove_isolation(step, INDEXED_ARGS, INDEXED)
        assert error.value.violations[0].primitive in ("gather", "scatter")


def test_sorted_slots_are_refused_and_sorted_shared_indices_are_assumed() -> None:
    def by_slot(pool: Array, slots: Array) -> Any:
        return (pool.at[slots].set(jnp.tanh(pool[slots]), indices_are_sorted=True),)

    with pytest.raises(IsolationError):
        prove_isolation(by_slot, SQUARE_ARGS, SQUARE)

    def shared(x: Array, values: Array, places: Array) -> Any:
        return (x.at[:, places].set(values.astype(x.dtype), indices_are_sorted=True),)

    contract = LaneContract((Lane(), Lane(), Shared()), (Lane(),))
    proof = prove_isolation(shared, (*INDEXED_ARGS, np.arange(3, dtype=np.int32)), contract)
    assert any(statement.id == Assumption.SORTED_INDICES and __file__ in statement.about for statement in proof.assumed)
    counted = prove_isolation(
        lambda x, values: shared(x, values, jnp.arange(3)), INDEXED_ARGS, LaneContract((Lane(), Lane()), (Lane(),))
    )
    assert counted.assumed == ()


def test_a_mode_without_a_documented_meaning_is_refused() -> None:
    def step(table: Array, ids: Array) -> Any:
        return (table.at[ids].get(mode="one_hot"),)

    contract = LaneContract((Shared(), Lane()), (Lane(),))
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, (np.ones((9, D), np.float32), np.zeros(N, np.int32)), contract)
    assert error.value.violations[0].kind == ViolationKind.UNKNOWN
