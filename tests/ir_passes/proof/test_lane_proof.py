"""The public lane proof: violations, explanations, assumptions, limits."""

import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import ir_passes as compiler
from ir_passes import Assumption, Lane, LaneContract, Note, Opaque, Pool, Shared, SlotMap, ViolationKind

N, S, D = 4, 9, 5
MAPPED = LaneContract(inputs=(Pool("p"), SlotMap("p", S), Lane()), outputs=(Lane(), Pool("p")))
LANES = LaneContract(inputs=(Shared(), Lane()), outputs=(Lane(),))


def mapped_args(lanes: int = N) -> tuple[jax.Array, ...]:
    return jnp.zeros((S, D)), jnp.arange(1, lanes + 1, dtype=jnp.int32), jnp.ones((lanes, D))


def lane_args(rows: int = N) -> tuple[jax.Array, ...]:
    return jnp.ones((D, D)), jnp.ones((rows, D))


def kinds(fn: Any, args: tuple[Any, ...], contract: LaneContract) -> set[ViolationKind]:
    with pytest.raises(compiler.IsolationError) as caught:
        compiler.prove_isolation(fn, args, contract)
    return {violation.kind for violation in caught.value.violations}


def proved(fn: Any, args: tuple[Any, ...], contract: LaneContract) -> compiler.Proof:
    return compiler.prove_isolation(fn, args, contract)


def rolled(pool, slots, x):
    rows = jnp.tanh(pool[slots] + x)
    mixed = jnp.roll(rows, 1, axis=0)
    return mixed.sum(1), pool.at[slots].set(rows)


def advanced(pool, slots, x):
    rows = jnp.tanh(pool[slots] + x)
    return rows.sum(1), pool.at[slots].set(rows)


def test_violation_names_the_users_line_and_says_what_to_do() -> None:
    with pytest.raises(compiler.IsolationError) as caught:
        compiler.prove_isolation(rolled, mapped_args(), MAPPED)
    (violation,) = caught.value.violations
    line = rolled.__code__.co_firstlineno + 2
    assert violation.source == f"{__file__}:{line}"
    assert violation.kind is ViolationKind.CROSS_LANE
    assert violation.primitive == "concatenate"
    assert violation.message and violation.remedy
    assert violation.source in str(caught.value)


def test_every_fault_is_reported_at_once() -> None:
    def step(pool, slots, x):
        rows = pool[slots + 1] + x
        return x[::-1].sum(1), pool.at[slots].set(rows) * 2

    assert kinds(step, mapped_args(), MAPPED) >= {ViolationKind.CROSS_LANE, ViolationKind.WRONG_ROW}


def test_one_lane_cannot_reach_itself_but_rows_of_others_stay_closed() -> None:
    args = mapped_args(1)
    proved(lambda p, s, x: (x.sum((0, 1))[None], p.at[s].set(p[s] + x.mean(0, keepdims=True))), args, MAPPED)
    faults = kinds(lambda p, s, x: (x.sum(1), p.at[s].set(p[s] + p.sum(0, keepdims=True))), args, MAPPED)
    assert faults == {ViolationKind.CROSS_LANE}


@pytest.mark.parametrize("shape", [(N * D,), (N, 1, D), (1, N, D), (N, D, 1)])
def test_lanes_survive_reshapes_that_keep_them_leading(shape: tuple[int, ...]) -> None:
    proved(lambda w, x: ((x.reshape(shape) * 2).reshape(N, D) @ w,), lane_args(), LANES)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_lanes_may_be_taken_apart_and_put_together_in_order_only(cut: int) -> None:
    proved(lambda w, x: (jnp.concatenate([x[:cut] * 2, x[cut:] @ w]),), lane_args(), LANES)
    assert kinds(lambda w, x: (jnp.concatenate([x[cut:], x[:cut]]),), lane_args(), LANES)


@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: x + x[::-1], lambda x: x[::-1][::-1]])
def test_lanes_are_not_reversed(change: Any) -> None:
    assert kinds(lambda w, x: (change(x),), lane_args(), LANES) == {ViolationKind.CROSS_LANE}
    proved(lambda w, x: (change(x.T).T,), lane_args(), LANES)


EXPERTS, TOP = 6, 2
EXPERT_ARGS = (jnp.ones((EXPERTS, D, 7)), jnp.ones((N, D)), jnp.ones((D, EXPERTS)))
EXPERT_CONTRACT = LaneContract(inputs=(Shared(), Lane(), Shared()), outputs=(Lane(),))


def sorted_experts(place, counted=lambda expert: jnp.bincount(expert, length=EXPERTS)):
    """Sort rows by expert, apply `place(rows)`, restore the order."""

    def step(w, x, router):
        expert = lax.top_k(x @ router, TOP)[1].reshape(-1)
        order = jnp.argsort(expert)
        rows = place(x[order // TOP])
        y = lax.ragged_dot(rows, w, counted(expert).astype(jnp.int32))
        return (y[jnp.argsort(order)].reshape(N, TOP, -1).sum(1),)

    return step


def test_what_is_the_same_for_all_rows_may_meet_sorted_rows() -> None:
    proved(
        sorted_experts(lambda rows: jnp.maximum(rows * jnp.arange(float(D))[None], 0) + 1), EXPERT_ARGS, EXPERT_CONTRACT
    )


@pytest.mark.parametrize("by", [0, 1])
def test_experts_are_counted_by_comparison(by: int) -> None:
    """Repeat the keys, compare them with all experts, and count along the rows."""
    shape = N * TOP, EXPERTS

    def counted(expert):
        keys = lax.broadcast_in_dim(expert, shape, (0,))
        return (keys == lax.broadcasted_iota(jnp.int32, shape, 1) + by).astype(jnp.int32).sum(0)

    if by:
        assert kinds(sorted_experts(lambda rows: rows, counted), EXPERT_ARGS, EXPERT_CONTRACT)
    else:
        proved(sorted_experts(lambda rows: rows, counted), EXPERT_ARGS, EXPERT_CONTRACT)


@pytest.mark.parametrize("place", [
    lambda rows: jnp.where(jnp.arange(N * TOP)[:, None] < 5, rows, 0.0),
    lambda rows: rows * jnp.linspace(0, 1, N * TOP)[:, None],
    lambda rows: jnp.concatenate([rows[:, 1:], jnp.arange(float(N * TOP))[:, None]], axis=1),
    lambda rows: lax.map(lambda pair: pair[0] * pair[1], (rows, jnp.arange(float(N * TOP)))),
    lambda rows: jnp.einsum("rd,rde->re", rows, jnp.arange(float(N * TOP))[:, None, None] * jnp.ones((1, D, D))),
    lambda rows: jnp.take_along_axis(rows, jnp.arange(N * TOP)[:, None] % D, axis=1) * jnp.ones((1, D)),
    lambda rows: jnp.arange(float(N * TOP))[:, None] * jnp.ones((1, D)) + 0 * rows,
])  # fmt: skip
def test_the_place_of_a_sorted_row_tells_of_other_lanes(place: Any) -> None:
    with jax.numpy_dtype_promotion("standard"):
        assert kinds(sorted_experts(place), EXPERT_ARGS, EXPERT_CONTRACT) == {ViolationKind.CROSS_LANE}


@pytest.mark.parametrize(
    "change", [lambda p: jnp.cumsum(p, 1), lambda p: jnp.sort(p, 1), lambda p: p @ jnp.eye(D), lambda p: p * 1.0]
)
def test_computing_on_a_whole_pool_loses_the_rows_that_no_lane_owns(change: Any) -> None:
    faults = kinds(lambda p, s, x: (x.sum(1), change(p).at[s].set(p[s] + x)), mapped_args(), MAPPED)
    assert ViolationKind.FRAME in faults


IDLE = LaneContract(inputs=(Pool("p"), Lane(role="length"), Lane()), outputs=(Pool("p"),))


def idle_args() -> tuple[jax.Array, ...]:
    return jnp.zeros((N, D)), jnp.ones((N,), jnp.int32), jnp.ones((N, D))


def test_idle_lane_must_be_shown_to_keep_its_row() -> None:
    proved(lambda p, n, x: (jnp.where(n[:, None] > 0, p + x, p),), idle_args(), IDLE)
    assert kinds(lambda p, n, x: (p + jnp.where(n[:, None] > 0, x, 0),), idle_args(), IDLE) == {ViolationKind.IDLE}
    assert kinds(lambda p, n, x: (jnp.where(n[:, None] >= 0, p + x, p),), idle_args(), IDLE) == {ViolationKind.IDLE}


def test_another_lanes_idleness_says_nothing_of_this_one() -> None:
    def step(p, n, x):
        anyone = compiler.declassify(jnp.any(n > 0), "all lanes advance together")
        return (jnp.where(anyone, p + x, p),)

    assert kinds(step, idle_args(), IDLE) == {ViolationKind.IDLE}


def test_declassified_value_is_listed_with_its_reason() -> None:
    def step(w, x):
        return (x / compiler.declassify(jnp.max(jnp.abs(x)), "one scale for the batch"),)

    (assumption,) = proved(step, lane_args(), LANES).assumed
    assert (assumption.id, assumption.about) == (Assumption.DECLASSIFIED, "one scale for the batch")
    with pytest.raises(ValueError, match="reason"):
        compiler.declassify(jnp.ones(()), " ")


@jax.jit
def opposite_rows(x, scale):
    return x[jnp.argsort(x[:, 0])] * scale


def test_row_wise_function_is_believed_and_listed() -> None:
    step = lambda w, x: (opposite_rows(x, w[0, 0]),)
    assert kinds(step, lane_args(), LANES)
    compiler.rowwise(opposite_rows, inputs=(Lane(), Shared()))
    (statement,) = proved(step, lane_args(), LANES).assumed
    assert (statement.id, statement.about) == (Assumption.ROW_WISE, "opposite_rows")
    assert kinds(lambda w, x: (opposite_rows(x.T, w[0, 0]).T,), lane_args(), LANES)
    with pytest.raises(ValueError, match="already"):
        compiler.rowwise(opposite_rows, inputs=(Shared(), Shared()))
    with pytest.raises(TypeError, match=r"jax\.jit"):
        compiler.rowwise(lambda x: x, inputs=(Lane(),))


def doubled(x: np.ndarray) -> np.ndarray:
    return x * 2


def called(w, x):
    return (jax.pure_callback(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"),)


def test_opaque_operation_needs_a_declaration() -> None:
    assert kinds(called, lane_args(), LANES) == {ViolationKind.OPAQUE}
    declared = LaneContract(LANES.inputs, LANES.outputs, opaque={"doubled": Opaque((Lane(),), (Lane(),))})
    (statement,) = proved(called, lane_args(), declared).assumed
    assert statement.id == Assumption.OPAQUE and re.fullmatch(r"doubled at \S+:\d+, called at \S+:\d+", statement.about)
    wrong = LaneContract(LANES.inputs, LANES.outputs, opaque={"doubled": Opaque((Shared(),), (Shared(),))})
    assert kinds(called, lane_args(), wrong) == {ViolationKind.OPAQUE}


def test_reshaped_arrays_without_elements_are_refused_in_words() -> None:
    faults = kinds(lambda _, x: (x + x[:, :0].reshape(N, 0, 3).sum((1, 2))[:, None],), lane_args(), LANES)
    assert faults == {ViolationKind.CROSS_LANE}


def test_random_numbers_of_one_key_tell_rows_where_they_lie() -> None:
    def drawn(_, x):
        order = jnp.argsort(x[:, 0])
        rows = x[order] + jax.random.gamma(jax.random.key(0), 1.0 + jnp.abs(x[order]))
        return (rows[jnp.argsort(order)],)

    assert kinds(drawn, lane_args(), LANES) == {ViolationKind.CROSS_LANE}


def test_callbacks_with_effects_give_other_numbers_each_time() -> None:
    """Rows sorted by one call are not restored by the order of the next call."""
    shape = jax.ShapeDtypeStruct((N,), jnp.float32)

    def sorted_twice(_, x):
        first, second = (jnp.argsort(io_callback(np.asarray, shape, x[:, 0])) for _ in range(2))
        return (x[first][jnp.argsort(second)],)

    contract = LaneContract(LANES.inputs, LANES.outputs, opaque={"asarray": Opaque((Lane(),), (Lane(),))})
    assert kinds(sorted_twice, lane_args(), contract) == {ViolationKind.CROSS_LANE}


def test_a_function_that_iterates_until_all_lanes_converge_is_refused() -> None:
    def improbable(_, x):
        return (jax.scipy.special.betainc(1.0 + jnp.abs(x), 2.0 + jnp.abs(x), jax.nn.sigmoid(x)),)

    assert kinds(improbable, lane_args(), LANES) == {ViolationKind.UNKNOWN}


def test_proof_says_what_it_proves() -> None:
    proof = proved(advanced, mapped_args(), MAPPED)
    assert proof.lanes == N and proof.equations > 3 and proof.seconds > 0
    proved_ids = ["non-interference", "frame", "linear-use", "coupling", "bounds", "constants"]
    assert [statement.id for statement in proof.proved] == proved_ids
    assert [(statement.id, statement.about) for statement in proof.assumed] == [(Assumption.SLOT_MAP, "args[1]")]
    assert [statement.id for statement in proof.notes] == [Note.DIMENSIONS_NOT_PROVED]
    json.dumps([dataclasses.asdict(statement) for statement in (*proof.proved, *proof.assumed, *proof.notes)])


def test_readme_example_runs_as_it_stands() -> None:
    text = (pathlib.Path(compiler.__file__).parent / "README.md").read_text()
    right, wrong = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in right.splitlines() if line.strip()]) <= 15
    scope: dict[str, Any] = {}
    exec(right, scope)
    with pytest.raises(compiler.IsolationError, match=ViolationKind.CROSS_LANE):
        exec(wrong, scope)
