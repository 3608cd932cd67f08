"""Messages of the proof: each fault once, at the user's line, with a proved remedy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from ir_passes import (
    Assumption,
    IsolationError,
    Lane,
    LaneContract,
    Pool,
    Shared,
    SlotMap,
    declassify,
    name_dims,
    prove_isolation,
)
from ir_passes.proof.violations import ViolationKind

N, ROWS, D, TAPS = 4, 9, 6, 3
STEP = LaneContract((Lane(), Pool("s"), SlotMap("s", size=ROWS)), (Lane(), Pool("s")))
LENGTHS = LaneContract((Lane(), Pool("s"), Lane(role="length")), (Lane(), Pool("s")))
CONV = Pool("s", dims=("slot", "chan", "tap"))
NAMED = LaneContract((Lane(), CONV, SlotMap("s", size=ROWS)), (Lane(), CONV))
ARGS = jnp.ones((N, D)), jnp.ones((ROWS, D)), jnp.array([3, 1, 7, 5], jnp.int32)


def refused(step: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract) -> Any:
    """The one violation of a step."""
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, contract)
    (violation,) = error.value.violations
    return violation


def line(of: Callable[..., Any], offset: int) -> str:
    return f"{__file__}:{of.__code__.co_firstlineno + offset}"


def helper(pool: Array, rows: Array, x: Array) -> Array:
    return pool.at[rows].set(jnp.tanh(pool[rows] + x))


def layers(update: Callable[..., Array], x: Array, pools: tuple[Array, ...], slots: Array) -> Any:
    new = []
    for pool in pools:
        new.append(update(pool, slots[::-1], x))
    return x, tuple(new)


@pytest.mark.parametrize("update", [helper, jax.jit(helper)])
def test_a_fault_of_all_layers_is_reported_once_with_helper_and_caller(update: Callable[..., Array]) -> None:
    x, pool, slots = ARGS
    violation = refused(partial(layers, update), (x, (pool, pool, pool), slots), STEP)
    assert violation.source == line(helper, 1)
    assert violation.callers[0] == line(layers, 3)
    assert [f"args[1][{k}]" in violation.concerned for k in range(3)] == [True] * 3
    assert f"called at {violation.callers[0]}" in str(violation)


def test_lines_of_a_loop_are_the_body_and_the_loop() -> None:
    def step(x: Array, pool: Array, slots: Array) -> Any:
        def body(pool: Array, _: None) -> Any:
            return helper(pool, slots[::-1], x), None

        return x, lax.scan(body, pool, None, length=2)[0]

    violation = refused(step, ARGS, STEP)
    assert (violation.source, violation.callers[:1]) == (line(helper, 1), (line(step, 2),))


def test_lines_of_flax_and_of_this_package_are_left_out() -> None:
    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x: Array) -> Array:
            return nn.LayerNorm(reduction_axes=(0, 1), feature_axes=-1)(x)

    module = Norm()
    params = module.init(jax.random.PRNGKey(0), ARGS[0])

    def step(x: Array) -> Any:
        return (module.apply(params, x),)

    violation = refused(step, ARGS[:1], LaneContract((Lane(),), (Lane(),)))
    assert violation.source.startswith(__file__)
    assert not any("flax" in place or "/ir_passes/proof/" in place.replace(__file__, "") for place in violation.callers)


def test_two_faults_are_two() -> None:
    def step(x: Array, pool: Array, slots: Array) -> Any:
        return x - x.mean(0, keepdims=True), helper(pool, slots[::-1], x)

    with pytest.raises(IsolationError) as error:
        prove_isolation(step, ARGS, STEP)
    assert {violation.kind for violation in error.value.violations} == {
        ViolationKind.CROSS_LANE,
        ViolationKind.WRONG_ROW,
    }


def flat(by: int, x: Array, pool: Array, slots: Array) -> Any:
    places = slots[:, None] * by + jnp.arange(D, dtype=jnp.int32)[None]
    flat = pool.reshape(ROWS * D)
    return x, flat.at[places].set(jnp.tanh(flat[places] + x)).reshape(ROWS, D)


def test_the_remedy_of_a_flat_pool() -> None:
    violation = refused(partial(flat, D - 1), ARGS, STEP)
    assert f"slots * {D} + offset" in violation.remedy
    prove_isolation(partial(flat, D), ARGS, STEP)


def test_a_flat_pool_with_named_dimensions_shows_none_of_them() -> None:
    """An index along merged dimensions may exchange them."""
    pool = Pool("s", dims=("slot", "key", "value"))
    contract = LaneContract((pool, SlotMap("s", size=ROWS)), (pool,))

    def step(named: bool, turned: bool, pool: Array, slots: Array) -> Any:
        rows = pool[slots].swapaxes(1, 2) if turned else pool[slots]
        places = jnp.arange(D * D, dtype=jnp.int32)[None]
        new = pool.reshape(ROWS, D * D).at[slots[:, None], places].set(rows.reshape(N, D * D)).reshape(pool.shape)
        return (name_dims(new, "slot", "key", "value") if named else new,)

    args = jnp.ones((ROWS, D, D)), ARGS[2]
    for turned in (True, False):
        violation = refused(partial(step, False, turned), args, contract)
        assert violation.kind is ViolationKind.DIMENSIONS and "name_dims(x, None, 'key', 'value')" in violation.remedy
    prove_isolation(partial(step, True, False), args, contract)


def window(update: bool, x: Array, state: Array, lengths: Array) -> Any:
    joined = jnp.concatenate([state, x], 1)
    new = jax.vmap(lambda rows, start: lax.dynamic_slice_in_dim(rows, start, TAPS, 0))(joined, lengths)
    return x, jnp.where((lengths > 0)[:, None, None], new, state) if update else new


def test_the_remedy_of_an_idle_row_that_is_cut_at_its_length() -> None:
    args = jnp.ones((N, 5, 2)), jnp.ones((N, TAPS, 2)), jnp.array([5, 0, 2, 1], jnp.int32)
    violation = refused(partial(window, False), args, LENGTHS)
    assert violation.kind is ViolationKind.IDLE and "where(length > 0, new, old)" in violation.remedy
    prove_isolation(partial(window, True), args, LENGTHS)


def shifted(token: Callable[[Array], Array], written: Callable[[Array], Array], *args: Array) -> Any:
    x, pool, slots = args
    joined = jnp.concatenate([pool[slots], token(x[..., None])], -1)
    return x, pool.at[slots].set(written(joined[..., 1:]))


def as_it_is(x: Array) -> Array:
    return x


def test_the_remedy_of_a_window_that_is_shifted_by_a_token() -> None:
    args = ARGS[0], jnp.ones((ROWS, D, TAPS)), ARGS[2]
    violation = refused(partial(shifted, as_it_is, as_it_is), args, NAMED)
    assert violation.source == line(shifted, 3)
    assert "name_dims(x, None, 'chan', 'tap')" in violation.remedy

    def named(x: Array) -> Array:
        return name_dims(x, None, "chan", "tap")

    prove_isolation(partial(shifted, named, as_it_is), args, NAMED)
    prove_isolation(partial(shifted, as_it_is, named), args, NAMED)


def test_a_window_of_another_dimension_is_refused() -> None:
    """Names of parts: a part along the channels is no window of taps."""

    def step(x: Array, pool: Array, slots: Array) -> Any:
        rows = pool[slots]
        turned = jnp.concatenate([rows[:, :, 1:], rows[:, :1].swapaxes(1, 2)[:, :, :1]], -1)
        return x, pool.at[slots].set(turned.swapaxes(1, 2))

    args = jnp.ones((N, TAPS)), jnp.ones((ROWS, TAPS, TAPS)), ARGS[2]
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, NAMED)
    assert {violation.kind for violation in error.value.violations} == {ViolationKind.DIMENSIONS}

    def parts(x: Array, pool: Array, slots: Array) -> Any:
        rows = pool[slots].swapaxes(1, 2)
        return x, pool.at[slots].set(jnp.concatenate([rows[:, :, :1], rows[:, :, 1:]], -1))

    assert refused(parts, args, NAMED).kind is ViolationKind.DIMENSIONS


def test_the_remedy_of_a_row_that_may_be_a_lanes() -> None:
    contract = LaneContract((*STEP.inputs, Lane(role="active")), STEP.outputs)

    def step(instead: int, x: Array, pool: Array, slots: Array, active: Array) -> Any:
        return x, pool.at[jnp.where(active, slots, instead)].set(x, mode="drop")

    args = *ARGS, jnp.array([True, False, True, True])
    violation = refused(partial(step, 1), args, contract)
    assert "where(active, slots, size) and mode='drop'" in violation.remedy
    prove_isolation(partial(step, ROWS), args, contract)


def test_rows_that_are_split_off_and_cut_out_are_not_taken_for_all_rows() -> None:
    def step(x: Array, pool: Array, slots: Array) -> Any:
        rows = pool.reshape(2, 4, D)[:, :2].reshape(4, D).reshape(8, D // 2)
        return x[:, : D // 2] + rows[slots], pool

    contract = LaneContract((Lane(), Pool("s"), SlotMap("s", size=8)), STEP.outputs)
    assert refused(step, (ARGS[0], jnp.ones((8, D)), ARGS[2]), contract).primitive == "reshape"


KV = LaneContract((Lane(), Pool("s"), Pool("s"), SlotMap("s", size=ROWS)), (Lane(), Pool("s"), Pool("s")))


def test_pools_that_are_written_by_one_wrong_index_are_one_fault() -> None:
    def step(rows: Callable[[Array], Array], x: Array, k: Array, v: Array, slots: Array) -> Any:
        index = rows(slots)
        k = k.at[index].set(x)
        v = v.at[index].set(x)
        return x, k, v

    args = ARGS[0], ARGS[1], ARGS[1], ARGS[2]
    for wrong in (lambda slots: jnp.arange(N, dtype=jnp.int32), lambda slots: slots + 1):
        violation = refused(partial(step, wrong), args, KV)
        assert {"args[1]", "args[2]"} <= set(violation.concerned)
    prove_isolation(partial(step, as_it_is), args, KV)


SUMMARY = LaneContract((Lane(),), (Lane(), Shared()))


@pytest.mark.parametrize("entry", [Shared(), None])
def test_the_remedy_of_a_mean_that_all_lanes_may_see(entry: Any) -> None:
    def step(mark: Callable[[Array], Array], x: Array) -> Any:
        return x * 2.0, mark(x.mean())

    contract = LaneContract((Lane(),), (Lane(), entry))
    violation = refused(partial(step, as_it_is), ARGS[:1], contract)
    assert "return declassify(value, reason)" in violation.remedy
    proof = prove_isolation(partial(step, lambda x: declassify(x, "a statistic of the batch")), ARGS[:1], contract)
    assert Assumption.DECLASSIFIED in [statement.id for statement in proof.assumed]


def test_a_mean_that_lanes_read_is_not_to_be_declassified() -> None:
    def step(x: Array) -> Any:
        mean = x.mean()
        return x - mean, mean

    assert "declassify" not in refused(step, ARGS[:1], SUMMARY).remedy


ROLES: dict[str, tuple[Any, Any, Callable[[Array], Array]]] = {
    "length > 0": (Lane(role="length"), jnp.array([5, 0, 2, 1], jnp.int32), lambda length: length > 0),
    "active": (Lane(role="active"), jnp.array([True, False, True, True]), as_it_is),
    "arange(lanes) < active_count": (
        Shared(role="active_count"),
        jnp.int32(2),
        lambda count: jnp.arange(N, dtype=jnp.int32) < count,
    ),
}


@pytest.mark.parametrize("condition", ROLES)
def test_idle_lanes_are_named_by_the_role_of_the_contract(condition: str) -> None:
    entry, array, busy = ROLES[condition]
    contract = LaneContract((Lane(), Pool("s"), entry), (Lane(role="accepted"), Pool("s")))

    def step(guarded: bool, x: Array, pool: Array, idle: Array) -> Any:
        mask, new = busy(idle), pool + x
        accepted = jnp.where(x[:, 0] > 0, 1, 0).astype(jnp.int32)
        return jnp.where(mask, accepted, 0), jnp.where(mask[:, None], new, pool) if guarded else new

    args = ARGS[0], jnp.ones((N, D)), array
    violation = refused(partial(step, False), args, contract)
    assert violation.kind is ViolationKind.IDLE
    assert (
        f"where({condition}, new, old)" in violation.remedy
        and f"(args[2], {type(entry).__name__}(role=" in violation.message
    )
    prove_isolation(partial(step, True), args, contract)

    def unguarded(x: Array, pool: Array, idle: Array) -> Any:
        return jnp.where(x[:, 0] > 0, 1, 0).astype(jnp.int32), pool

    violation = refused(unguarded, args, contract)
    assert violation.kind is ViolationKind.ACCEPTED and f"where({condition}, accepted, 0)" in violation.remedy


EXPERTS, CAPACITY = 3, 2
MOE = LaneContract((Lane(), Shared(), Shared()), Lane())


def by_capacity(x: Array, router: Array, w: Array) -> Array:
    expert = jnp.argmax(x @ router, -1)
    chosen = jax.nn.one_hot(expert, EXPERTS, dtype=jnp.int32)
    place = (jnp.cumsum(chosen, 0) * chosen).sum(1) - 1
    fits = (place < CAPACITY)[:, None]
    buffers = jnp.zeros((EXPERTS, CAPACITY, D)).at[expert, place].set(jnp.where(fits, x, 0.0), mode="drop")
    return jnp.where(fits, jnp.einsum("ecd,edf->ecf", buffers, w)[expert, place], 0.0)


def by_expert_choice(x: Array, router: Array, w: Array) -> Array:
    weights, tokens = lax.top_k(jax.nn.softmax(x @ router).T, CAPACITY)
    rows = jnp.einsum("ecd,edf->ecf", x[tokens], w) * weights[..., None]
    return jnp.zeros_like(x).at[tokens.reshape(-1)].add(rows.reshape(-1, D))


def by_sorted_capacity(x: Array, router: Array, w: Array) -> Array:
    expert = jnp.argmax(x @ router, -1)
    order = jnp.argsort(expert)
    counts = jnp.bincount(expert, length=EXPERTS)
    place = jnp.arange(N) - (jnp.cumsum(counts) - counts)[expert[order]]
    buffers = jnp.zeros((EXPERTS, CAPACITY, D)).at[expert[order], place].set(x[order], mode="drop")
    rows = jnp.einsum("ecd,edf->ecf", buffers, w).at[expert[order], place].get(mode="fill", fill_value=0.0)
    return jnp.zeros_like(x).at[order].set(rows)


def in_sorted_form(x: Array, router: Array, w: Array) -> Array:
    expert = jnp.argmax(x @ router, -1)
    order = jnp.argsort(expert)
    return lax.ragged_dot(x[order], w, jnp.bincount(expert, length=EXPERTS))[jnp.argsort(order)]


@pytest.mark.parametrize(
    ("step", "operation"), [(by_capacity, "cumsum"), (by_expert_choice, "top_k"), (by_sorted_capacity, "scatter-add")]
)
def test_the_remedy_of_a_capacity_of_experts_is_the_sorted_form(step: Callable[..., Any], operation: str) -> None:
    args = ARGS[0], jnp.ones((D, EXPERTS)), jnp.ones((EXPERTS, D, D))
    violation = refused(step, args, MOE)
    assert violation.primitive == operation and violation.source.startswith(__file__)
    typed = "jax.lax.ragged_dot(x[order], w, groups)[jnp.argsort(order)]"
    assert "capacity" in violation.remedy and typed in violation.remedy
    prove_isolation(in_sorted_form, args, MOE)
