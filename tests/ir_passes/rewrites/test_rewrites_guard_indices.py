"""After guarding, a bad row index reads nothing of another row and writes nothing into one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audited_steps import LANES, ONE, ROW, SLOTS, STACKED, fori_loop, per_sequence_loop, pool, slots, stacked, x
from jax import lax
from rewritten_steps import assert_same, copies, graph_of, inputs, primitives, rewrite

from ir_passes import LaneContract, Pool, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.rewrites import GuardIndices, HoistReads
from ir_passes.rewrites.graph import Graph
from ir_passes.rewrites.negative_wrap import NegativeWrap

ARGS = (pool(), slots(), x())


def indexed(pool, slots, x):
    rows = pool[slots] + x
    return pool.at[slots].set(rows), rows


def clipped(pool, slots, x):
    rows = pool.at[slots].get(mode="clip") + x
    return pool.at[slots].set(rows, mode="clip"), rows


def vmapped_slices(pool, slots, x):
    rows = jax.vmap(lambda slot: lax.dynamic_slice(pool, (slot, slot // 2, 0), (1, 2, 16)))(slots)
    return pool.at[slots, :2].add(rows[:, 0], mode="clip"), x


def single_rows(pool, slots, x):
    sums = []
    for i in range(LANES):
        row = pool[slots[i]] + x[i]
        pool = pool.at[slots[i]].set(row)
        sums.append(row.sum())
    return pool, jnp.stack(sums)


def parts_of_rows(pool, slots, x):
    for i in range(LANES):
        at = (slots[i], slots[i] - 3, 0)
        pool = lax.dynamic_update_slice(pool, lax.dynamic_slice(pool, at, (1, 2, 16)) + x[i, None, :2], at)
    return pool, x


def in_a_branch(pool, slots, x):
    def write(pool):
        return lax.dynamic_update_slice(pool, x[:1], (slots[0], 0, 0))

    return lax.cond(x[0, 0, 0] > 0, write, lambda pool: pool, pool), x


def in_a_while(pool, slots, x):
    def body(carry):
        i, pool = carry
        return i + 1, pool.at[slots[i]].set(pool[slots[i]] + x[i])

    return lax.while_loop(lambda carry: carry[0] < LANES, body, (jnp.int32(0), pool))[1], x


STEPS = (
    per_sequence_loop,
    indexed,
    clipped,
    vmapped_slices,
    single_rows,
    parts_of_rows,
    fori_loop,
    in_a_branch,
    in_a_while,
)


def clamping(jaxpr: ir.Jaxpr) -> list[str]:
    """Accesses that move a bad index, here and in bodies; with the scan's own slices of small arrays left out."""
    found = []
    for eqn in jaxpr.eqns:
        large = eqn.invars and getattr(eqn.invars[0].aval, "shape", ())[:1] == (SLOTS,)
        name, mode = eqn.primitive.name, eqn.params.get("mode")
        if large and (name.startswith("dynamic_") or mode not in (None, lax.GatherScatterMode.FILL_OR_DROP)):
            found.append(name)
        found += [one for body in ir.sub_jaxprs(eqn) for one in clamping(body)]
    return found


@pytest.mark.parametrize("step", STEPS)
def test_good_indices_give_the_same_bits(step) -> None:
    before = graph_of(step, ARGS, ONE)
    after, report = rewrite(GuardIndices(), before)
    assert_same(before, after)
    assert clamping(before.program.jaxpr)
    assert not clamping(after.program.jaxpr)
    assert report.startswith("guarded ")


def touched(graph: Graph, bad: int) -> tuple[set[int], np.ndarray]:
    """The rows that a step changes when lane 1 has a bad slot, and its second result."""
    operands = inputs(graph.bound, 0, 3)
    operands[1][:] = [1, bad, 3, 4]
    pools, result = jax.jit(ir.as_function(graph.program))(*operands)
    changed = np.flatnonzero((np.asarray(pools) != operands[0]).any((1, 2)))
    return set(changed.tolist()) - {1, 3, 4}, np.asarray(result)


@pytest.mark.each_value
@pytest.mark.parametrize("bad", [-1, -SLOTS, SLOTS, SLOTS + 5])
@pytest.mark.parametrize("step", [one for one in STEPS if one is not in_a_branch])
def test_a_bad_index_touches_no_row(step, bad: int) -> None:
    after = GuardIndices().run(graph_of(step, ARGS, ONE))
    rows, result = touched(after, bad)
    assert rows == set()
    if step is indexed:
        assert np.isnan(result[1]).all()
        assert np.isfinite(result[[0, 2, 3]]).all()


def test_without_the_guard_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph_of(indexed, ARGS, ONE)
    assert touched(before, -1)[0] == {SLOTS - 1}
    monkeypatch.setattr(NegativeWrap, "removed", lambda *_: None)
    assert touched(GuardIndices().run(before), -1)[0] == {SLOTS - 1}


def test_stacked_pools_in_a_scan_and_constant_rows() -> None:
    def step(pools, slots, x):
        def body(carry, layer):
            pools, x = carry
            rows = pools[layer, slots] * 0.5 + x
            return (pools.at[layer, slots].set(rows), jnp.tanh(rows)), None

        (pools, x), _ = lax.scan(body, (pools, x), jnp.arange(3, dtype=jnp.int32))
        return pools, x + lax.dynamic_slice(pools, (0, 0, 0, 0), (1, 1, *ROW))[0]

    before = graph_of(step, (stacked(), slots(), x()), STACKED)
    after, report = rewrite(GuardIndices(), before)
    assert_same(before, after)
    assert report == "guarded 2 row indices of pools"
    assert primitives(after).count("dynamic_slice") == primitives(before).count("dynamic_slice")


def test_layers_scanned_over_keep_their_row_axis() -> None:
    def step(pools, slots, x):
        def body(x, pool):
            row = lax.dynamic_slice(pool, (slots[2], 0, 0), (1, *ROW))
            return x + row, lax.dynamic_update_slice(pool, row * 2.0, (slots[2], 0, 0))

        x, pools = lax.scan(body, x, pools)
        return pools, x

    before = graph_of(step, (stacked(), slots(), x()), STACKED)
    after, report = rewrite(GuardIndices(), before)
    assert_same(before, after)
    assert report == "guarded 2 row indices of pools"


def test_what_is_guarded_already_stays() -> None:
    def step(pool, slots, x):
        rows = pool.at[slots].get(mode="fill", wrap_negative_indices=False) + x
        return pool.at[slots].set(rows, mode="drop", wrap_negative_indices=False), x + pool[3][None]

    before = graph_of(step, ARGS, ONE)
    after, report = rewrite(GuardIndices(), before)
    assert (after, report) == (before, "")


def test_a_wrap_around_a_wrap_goes_too() -> None:
    def step(pool, slots, x):
        wrapped = jnp.where(slots < 0, slots + SLOTS, slots)
        return pool.at[wrapped].set(x), pool[wrapped]

    before = graph_of(step, ARGS, ONE)
    after, _ = rewrite(GuardIndices(), before)
    assert_same(before, after)
    assert touched(after, -1)[0] == set()


def test_batched_rows_are_left_alone_and_named() -> None:
    contract = LaneContract(
        (Pool("p", axis=1), SlotMap("p", SLOTS), ONE.inputs[2]), (Pool("p", axis=1), ONE.outputs[1])
    )

    def step(pools, slots, x):
        read = jax.vmap(lambda pool, slot: lax.dynamic_index_in_dim(pool, slot, 0, keepdims=False))
        return pools, x + read(pools, slots)

    before = graph_of(step, (jnp.zeros((LANES, SLOTS, *ROW)), slots(), x()), contract)
    after, report = rewrite(GuardIndices(), before)
    assert after is before
    assert report.startswith("left alone gather at ")
    assert "test_rewrites_guard_indices.py" in report


def test_guarded_reads_still_stand_before_the_writes() -> None:
    before = graph_of(per_sequence_loop, ARGS, ONE)
    for passes in ((HoistReads(), GuardIndices()), (GuardIndices(), HoistReads())):
        after = before
        for one in passes:
            after, _ = rewrite(one, after)
        assert_same(before, after)
        assert copies(after, (0,)) == 0
