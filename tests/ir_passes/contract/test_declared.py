"""A call counts as row-wise only if its body is the declared function."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from ir_passes import (
    IsolationError,
    Lane,
    LaneContract,
    Proof,
    Shared,
    ViolationKind,
    declassify,
    prove,
    prove_isolation,
    rowwise,
)
from ir_passes.contract.statements import Assumption
from ir_passes.jaxpr import ir

N, D = 4, 6
ONE = LaneContract((Lane(),), (Lane(),))


def proof(step: Any) -> Proof:
    return prove_isolation(step, (jnp.ones((N, D)),), ONE)


def refused(step: Any) -> str:
    with pytest.raises(IsolationError) as error:
        proof(step)
    assert [violation.kind for violation in error.value.violations] == [ViolationKind.OPAQUE]
    return str(error.value)


def made(operation: Any) -> Any:
    @jax.jit
    def of_factory(x):
        return operation(x)

    return of_factory


def test_a_function_of_the_same_factory_is_not_taken_for_the_one_declared() -> None:
    good, bad, other = made(lambda x: x * 2), made(lambda x: x[::-1]), made(jnp.sin)
    rowwise(good, (Lane(),))
    assert [(statement.id, statement.about) for statement in proof(lambda x: (good(x),)).assumed] == [
        (Assumption.ROW_WISE, "of_factory")
    ]
    assert "with another body than the function declared" in refused(lambda x: (bad(x),))
    assert "with another body than the function declared" in refused(lambda x: (other(good(x)),))
    rowwise(other, (Lane(),))
    assert proof(lambda x: (other(good(x)),))


def test_a_function_is_known_after_what_is_dead_in_it_was_dropped() -> None:
    @jax.jit
    def half_dead(x):
        jnp.sin(x)
        return x + 3

    rowwise(half_dead, (Lane(),))
    step, args = lambda x: (half_dead(x),), (jnp.ones((N, D)),)
    program = jax.make_jaxpr(step)(*args)
    live = ir.without_dead(program)
    assert len(list(ir.all_eqns(live.jaxpr))) < len(list(ir.all_eqns(program.jaxpr)))
    assert prove(live, ONE, passes=()).proof is not None


def test_callbacks_of_the_same_name_are_told_apart() -> None:
    def of_host(change):
        def by_host(x):
            return change(x)

        return made(lambda x: jax.pure_callback(by_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))

    good, bad = of_host(lambda x: x * 2), of_host(lambda x: x[::-1])
    rowwise(good, (Lane(),))
    assert proof(lambda x: (good(x),))
    refused(lambda x: (bad(x),))


@partial(jax.jit, static_argnames="scale")
def scaled(x, scale=1.0):
    return x * scale


rowwise(scaled, (Lane(),), static=({}, {"scale": 2.0}))


def test_is_known_under_vmap_where_the_batch_takes_the_place_of_rows() -> None:
    assert proof(lambda x: (jax.vmap(scaled)(x),))
    assert proof(lambda x: (jax.vmap(jax.vmap(scaled))(x[:, :, None])[:, :, 0],))

    @jax.jit
    def reversed_within(x):
        return x[::-1]

    rowwise(reversed_within, (Lane(1),), (Lane(1),))
    rows_last = LaneContract((Lane(1),), (Lane(1),))
    assert prove_isolation(lambda x: (reversed_within(x),), (jnp.ones((D, N)),), rows_last)
    with pytest.raises(IsolationError, match=ViolationKind.OPAQUE):
        prove_isolation(lambda x: (jax.vmap(reversed_within)(x),), (jnp.ones((3, N, D)),), rows_last)


def test_static_arguments_are_those_declared() -> None:
    assert proof(lambda x: (scaled(x) + scaled(x, scale=2.0),))
    refused(lambda x: (scaled(x, scale=3.0),))


@jax.jit
def rows_of_two(x, y):
    return x + y[:1]


rowwise(rows_of_two, (Lane(), Lane()))


def test_all_rows_are_as_many() -> None:
    assert "different numbers of rows in this call: 4, 8" in refused(lambda x: (rows_of_two(x, jnp.ones((2 * N, D))),))


@jax.jit
def placed(x):
    return x + jnp.arange(x.shape[0], dtype=x.dtype)[:, None]


rowwise(placed, (Lane(),))


def test_rows_in_an_order_of_all_lanes_do_not_meet_a_function_that_may_read_their_places() -> None:
    def step(x):
        order = jnp.argsort(x[:, 0])
        return (placed(x[order])[jnp.argsort(order)],)

    with pytest.raises(IsolationError, match="an order that depends on all lanes meet a declared operation"):
        proof(step)
    assert proof(lambda x: (placed(x),))


@jax.jit
def with_mean(x):
    return x * 2, x.mean(0)


rowwise(with_mean, (Lane(),), (Lane(), Shared()))


@pytest.mark.parametrize("step", [
    lambda x: (x + with_mean(x)[1][:, None],), lambda x: (with_mean(x)[1],), lambda x: (x + with_mean(x)[1].sum(),),
])  # fmt: skip
def test_a_shared_result_of_rows_is_of_several_lanes(step: Any) -> None:
    """It has as many elements as there are lanes."""
    square = (jnp.ones((N, N)),)
    with pytest.raises(IsolationError, match="result 1 of with_mean is declared shared, and an argument holds lanes"):
        prove_isolation(step, square, ONE)
    meant = lambda x: (x + declassify(with_mean(x)[1], "one mean for the batch")[None],)
    assert prove_isolation(meant, square, ONE)
    assert prove_isolation(lambda x: (with_mean(x)[0],), square, ONE)
    weights = LaneContract((Lane(), Shared()), (Lane(),))
    assert prove_isolation(lambda x, w: (x + with_mean(w)[1][None],), square * 2, weights)


def test_is_known_in_loops_branches_and_meshes() -> None:
    def looped(x):
        x = lax.fori_loop(0, 3, lambda _, y: scaled(y, scale=2.0), x)
        return (lax.cond(True, scaled, lambda y: y, x),)

    assert proof(looped)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    for check in (True, False):
        local = jax.shard_map(
            lambda x: (scaled(x + lax.axis_index("data").astype(x.dtype)),),
            mesh=mesh,
            in_specs=P("data"),
            out_specs=P("data"),
            check_vma=check,
        )
        assert proof(local)
