"""A pool that a scan takes apart and stacks up again is carried, and nothing else is."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from audited_steps import ONE, ROW, SLOTS, STACKED, pool_as_carry, pool_as_xs, slots, stacked, x
from jax import lax
from rewritten_steps import assert_same, copies, graph_of, primitives, rewrite
from zoo.catalogue import PROGRAMS

from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.contract.statements import Claim
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import prove_jaxpr
from ir_passes.rewrites import CarryPools, carry_pools
from ir_passes.rewrites.graph import Graph

ARGS = (stacked(), slots(), x())
TWO = LaneContract(
    (Pool("a", axis=1), Pool("b", axis=1), SlotMap(("a", "b"), SLOTS), Lane()),
    (Pool("a", axis=1), Pool("b", axis=1), Lane()),
)


def scans(graph: Graph) -> list[ir.JaxprEqn]:
    return [eqn for eqn in graph.program.jaxpr.eqns if eqn.primitive.name == "scan"]


def test_the_scanned_pool_is_not_copied_any_more() -> None:
    before = graph_of(pool_as_xs, ARGS, STACKED)
    after, report = rewrite(CarryPools(), before)
    assert_same(before, after)
    assert report == "pool 'p': 1 carried through 1 scans instead of sliced and stacked"
    assert (copies(before, (0,)), copies(after, (0,))) == (1, 0)
    (loop,) = scans(after)
    assert ir.scan_counts(loop)[1] == 2
    assert "audited_steps.py" in ir.source_of(loop)


def masked(reverse: bool) -> Callable:
    """The successor is no update of the slice, but the only array of its type."""

    def step(pools, slots, x):
        def body(x, inputs):
            pool, scale = inputs
            new = pool.at[slots].set(pool[slots] * scale + x)
            return jnp.tanh(pool[slots]) + x, (jnp.where(scale > 0, new, pool), scale * 2.0)

        x, (pools, _) = lax.scan(body, x, (pools, jnp.array([1.0, -1.0, 0.5])), reverse=reverse)
        return pools, x

    return step


@pytest.mark.parametrize("reverse", [False, True])
def test_reversed_and_masked(reverse: bool) -> None:
    before = graph_of(masked(reverse), ARGS, STACKED)
    after, report = rewrite(CarryPools(), before)
    assert_same(before, after)
    assert report.startswith("pool 'p': 1 carried")


def test_two_pools_through_two_scans() -> None:
    def step(a, b, slots, x):
        def forth(x, pools):
            one, other = pools
            rows = one[slots] + other[slots] + x
            return jnp.tanh(rows), (other.at[slots].set(rows), one.at[slots].set(rows * 2.0))

        x, (b, a) = lax.scan(forth, x, (a, b))
        a = a.at[1, slots].set(x)
        x, a = lax.scan(lambda x, one: (x + one[slots], one.at[slots].add(x)), x, a)
        return a, b, x

    before = graph_of(step, (stacked(), stacked() + 1.0, slots(), x()), TWO)
    after, report = rewrite(CarryPools(), before)
    assert_same(before, after)
    assert report == "pools 'a', 'b': 3 carried through 2 scans instead of sliced and stacked"
    assert copies(after, (0, 1)) < copies(before, (0, 1))


def test_row_pools_of_steps_with_idle_lanes_are_carried() -> None:
    """The proof after the rewrite shows of the carry, too, that idle lanes keep their rows."""
    program = PROGRAMS["layers over row pools, idle lanes, remat"]
    before = graph_of(program.step, program.args(), program.contract)
    after, report = rewrite(CarryPools(), before)
    assert_same(before, after)
    assert report == "pool 'seq': 1 carried through 1 scans instead of sliced and stacked"
    assert Claim.IDLE in {one.id for one in prove_jaxpr(after.program, after.bound).proved}
    assert (copies(before, (2,)), copies(after, (2,))) == (1, 0)


def test_a_wrong_layer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph_of(pool_as_xs, ARGS, STACKED)
    right = carry_pools._layer
    monkeypatch.setattr(carry_pools, "_layer", lambda pool, layer: right(pool, layer * 0))
    with pytest.raises(AssertionError):
        assert_same(before, CarryPools().run(before))


def over_rows(pool, slots, x):
    x, pool = lax.scan(lambda x, row: (x + row[None], row * 2.0), x, pool)
    return pool, x


def read_again(pools, slots, x):
    x, new = lax.scan(lambda x, pool: (x + pool[slots], pool.at[slots].set(x)), x, pools)
    return new, x + pools[0, slots]


def printing(pools, slots, x):
    def body(x, pool):
        jax.debug.print("{}", x.sum())
        return x + pool[slots], pool.at[slots].set(x)

    x, pools = lax.scan(body, x, pools)
    return pools, x


@pytest.mark.parametrize(
    ("step", "contract", "why"),
    [
        (over_rows, ONE, "it scans over its rows"),
        (read_again, STACKED, "it is read elsewhere too"),
        (printing, STACKED, "the scan has effects"),
        (pool_as_carry, STACKED, ""),
    ],
)
def test_left_alone(step, contract: LaneContract, why: str) -> None:
    pools = jnp.zeros((SLOTS, *ROW)) if contract is ONE else stacked()
    before = graph_of(step, (pools, slots(), x()), contract)
    after, report = rewrite(CarryPools(), before)
    assert after is before
    assert report.endswith(why)
    assert bool(report) == bool(why)
    assert primitives(after) == primitives(before)
