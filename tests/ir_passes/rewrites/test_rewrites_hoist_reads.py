"""Reads of rows move above writes of other rows of the same slot map, and above nothing else."""

import jax
import jax.numpy as jnp
import pytest
from audited_steps import LANES, ONE, ROW, SLOTS, STACKED, per_sequence_loop, pool, slots, stacked, x
from jax import lax
from rewritten_steps import assert_same, copies, graph_of, primitives, rewrite

from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.rewrites import HoistReads
from ir_passes.rewrites.graph import Graph
from ir_passes.rewrites.pool_access import WRITES, PoolAccesses

ARGS = (pool(), slots(), x())
FORK = LaneContract((Pool("p"), SlotMap("p", SLOTS, "read"), SlotMap("p", SLOTS, "write"), Lane()), ONE.outputs)


def indexed_loop(pool, slots, x):
    sums = []
    for i in range(LANES):
        row = pool[slots[i]] * 0.5 + x[i]
        pool = pool.at[slots[i]].set(row)
        sums.append(row.sum())
    return pool, jnp.stack(sums)


def unwrapped_loop(pool, slots, x):
    sums = []
    for i in range(LANES):
        row = pool.at[slots[i]].get(mode="fill", wrap_negative_indices=False) + x[i]
        pool = pool.at[slots[i]].add(row, mode="drop", wrap_negative_indices=False)
        sums.append(row.sum())
    return pool, jnp.stack(sums)


@pytest.mark.parametrize("step", [per_sequence_loop, indexed_loop, unwrapped_loop])
def test_a_loop_over_sequences_copies_no_pool_any_more(step) -> None:
    before = graph_of(step, ARGS, ONE)
    after, report = rewrite(HoistReads(), before)
    assert_same(before, after)
    reads = f"hoisted {LANES - 1} reads of pool 'p' above its writes; joined {LANES} reads of pool 'p' in one gather"
    assert report == reads
    assert (copies(before, (0,)), copies(after, (0,))) == (LANES + 1, 0)
    names = primitives(after)
    assert names.index("gather") < min(i for i, name in enumerate(names) if name in WRITES)


def test_layers_of_a_stacked_pool() -> None:
    def step(pools, slots, x):
        for layer in range(3):
            for i in range(LANES):
                row = pools[layer, slots[i]] * 0.5 + x[i]
                pools = pools.at[layer, slots[i]].set(row)
                x = x.at[i].set(row)
        return pools, x

    before = graph_of(step, (stacked(), slots(), x()), STACKED)
    after, report = rewrite(HoistReads(), before)
    assert_same(before, after)
    assert report.startswith(f"hoisted {3 * (LANES - 1)} reads of pool 'p' above its writes")
    assert report.count("joined") == 3
    assert copies(before, (0,)) > 0 == copies(after, (0,))


def test_positions_within_rows_are_read_early_too() -> None:
    """The box is not known within the row; the rows are distinct all the same."""

    def step(pool, slots, x):
        for i in range(LANES):
            at = (slots[i], slots[i] // 3, 0)
            pool = lax.dynamic_update_slice(pool, lax.dynamic_slice(pool, at, (1, 2, 16)) + x[i, None, :2], at)
        return pool, x

    before = graph_of(step, ARGS, ONE)
    after, report = rewrite(HoistReads(), before)
    assert_same(before, after)
    assert report == f"hoisted {LANES - 1} reads of pool 'p' above its writes"


def same_row(pool, slots, x):
    pool = pool.at[slots[0]].set(x[0])
    read = pool[slots[0]] + pool[slots[1]]
    return pool.at[slots[1]].set(x[1]), x + read[None]


def test_a_read_of_the_row_that_was_written_stays() -> None:
    before = graph_of(same_row, ARGS, ONE)
    after, report = rewrite(HoistReads(), before)
    assert_same(before, after)
    assert report == "hoisted 1 reads of pool 'p' above its writes"


def test_a_broken_comparison_of_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoolAccesses, "other_rows", lambda *_: True)
    before = graph_of(same_row, ARGS, ONE)
    with pytest.raises(AssertionError):
        assert_same(before, HoistReads().run(before))


def by_read_map(pool, read, write, x):
    for i in range(LANES):
        pool = pool.at[write[i]].set(pool[read[i]] + x[i])
    return pool, x


def by_computed_row(pool, slots, x):
    for i in range(LANES):
        row = jnp.minimum(slots[i] + i, SLOTS - 1)
        pool = pool.at[row].set(pool[row] + x[i])
    return pool, x


def by_what_was_written(pool, slots, x):
    for i in range(LANES - 1):
        pool = pool.at[slots[i]].set(x[i])
        chosen = jnp.where(pool[slots[i]].sum() > 0, slots[i + 1], slots[i])
        x = x + pool[chosen][None]
    return pool, x


def after_a_batched_write(pool, slots, x):
    pool = pool.at[slots].set(x)
    return pool, x + pool[slots[1]][None]


@pytest.mark.parametrize(
    ("step", "args", "contract"),
    [
        (by_read_map, (pool(), slots(), slots(), x()), FORK),
        (by_computed_row, ARGS, ONE),
        (by_what_was_written, ARGS, ONE),
        (after_a_batched_write, ARGS, ONE),
        (indexed_loop, (pool()[:-1], slots(), x()), ONE),
    ],
    ids=["read map", "computed row", "written row", "batched write", "fewer rows than slots"],
)
def test_left_alone(step, args, contract: LaneContract) -> None:
    before = graph_of(step, args, contract)
    after, report = rewrite(HoistReads(), before)
    assert after is before
    assert report == ""


def test_effects_and_sources_stay() -> None:
    def step(pool, slots, x):
        for i in range(LANES):
            row = pool[slots[i]] * 0.5
            jax.debug.print(f"{i} {{}}", row.sum(), ordered=True)
            pool = pool.at[slots[i]].set(row)
        return pool, x

    before = graph_of(step, ARGS, ONE)
    after, _ = rewrite(HoistReads(), before)

    def effects(graph: Graph) -> list[str]:
        return [eqn.params["fmt"] for eqn in graph.program.jaxpr.eqns if eqn.effects]

    assert effects(after) == effects(before) == [f"{i} {{}}" for i in range(LANES)]
    first = step.__code__.co_firstlineno
    lines = {int(ir.source_of(eqn).rsplit(":", 1)[1]) for eqn in after.program.jaxpr.eqns}
    assert lines <= set(range(first, first + 6))


def test_two_pools_of_one_map() -> None:
    contract = LaneContract(
        (Pool("a"), Pool("b", axis=1), SlotMap(("a", "b"), SLOTS), Lane()), (Pool("a"), Pool("b", axis=1), Lane())
    )

    def step(a, b, slots, x):
        for i in range(LANES):
            row = lax.dynamic_index_in_dim(a, slots[i], 0, keepdims=False)
            other = lax.dynamic_index_in_dim(b, slots[i], 1, keepdims=False)
            a = lax.dynamic_update_index_in_dim(a, row + other, slots[i], 0)
            b = lax.dynamic_update_index_in_dim(b, row * other, slots[i], 1)
        return a, b, x

    before = graph_of(step, (pool(), jnp.ones((ROW[0], SLOTS, ROW[1])), slots(), x()), contract)
    after, report = rewrite(HoistReads(), before)
    assert_same(before, after)
    assert "'a'" in report and "'b'" in report
    assert copies(before, (0, 1)) > 0 == copies(after, (0, 1))
