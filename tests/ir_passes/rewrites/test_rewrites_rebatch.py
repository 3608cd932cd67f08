"""The same work on every lane becomes one computation, and nothing else does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audited_steps import LANES, ONE, ROW, SLOTS, per_sequence_loop, pool, slots, x
from jax import lax
from rewritten_steps import assert_same, brackets, copies, graph_of, primitives, rewrite

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap, rowwise
from ir_passes.jaxpr import ir
from ir_passes.jaxpr import primitives as primitive_table
from ir_passes.rewrites import batching, rebatch
from ir_passes.rewrites.graph import Graph
from ir_passes.rewrites.lane_owners import LaneOwners
from ir_passes.rewrites.lane_work import SameWork

ARGS = (pool(), slots(), x())
ROWS = LaneContract((Pool("p"), Shared(), Lane()), (Pool("p"), Lane()))
FORK = LaneContract((Pool("p"), SlotMap("p", SLOTS, "read"), SlotMap("p", SLOTS, "write"), Lane()), ONE.outputs)


def added_twice(pool, slots, x):
    """Write each row twice and sum the rows over lanes."""
    for i in range(LANES):
        pool = pool.at[slots[i]].add(x[i])
        row = pool[slots[i]]
        pool = pool.at[slots[i], 1].multiply(row[2])
    return pool, x


def parts_of_rows(pool, slots, x):
    for i in range(LANES):
        start = (slots[i], 1, 0)
        part = lax.dynamic_slice(pool, start, (1, 2, 16)) + x[i, None, :2]
        pool = lax.dynamic_update_slice(pool, part, start)
        pool = pool.at[slots[i], 3].set(part[0, 0] * 2.0)
    return pool, x


def unstacked(pool, slots, x):
    rows = []
    for slot, row in zip(jnp.unstack(slots), jnp.split(x, LANES), strict=True):
        rows.append(jnp.maximum(pool[slot], row[0]))
        pool = pool.at[slot].min(rows[-1] * 0.5, mode="drop")
    return pool, jnp.concatenate([row[None] for row in rows])


def nested_scan(pool, slots, x):
    out = []
    for i in range(LANES):
        total, rows = lax.scan(lambda c, r: (jnp.where(r > 0, c + r, c), c * 2.0), jnp.zeros(16), pool[slots[i]] + x[i])
        pool = pool.at[slots[i]].set(rows)
        out.append(total)
    return pool, jnp.stack(out, axis=0)


def pool_writes(graph: Graph) -> list[str]:
    eqns = [eqn for eqn in graph.program.jaxpr.eqns if eqn.primitive.name in primitive_table.WRITES]
    return [eqn.primitive.name for eqn in eqns if ir.types(eqn.outvars) == ir.types(graph.program.jaxpr.invars[:1])]


@pytest.mark.parametrize("step", [per_sequence_loop, brackets, added_twice, parts_of_rows, unstacked, nested_scan])
def test_a_loop_over_sequences(step) -> None:
    graph = graph_of(step, ARGS, ONE)
    final, report = rewrite(rebatch, graph)
    assert_same(graph, final)
    assert report.startswith(f"re-batched {LANES} lanes x ")
    assert report.endswith("equations of pool 'p'")
    assert len(pool_writes(final)) == len(pool_writes(graph)) // LANES
    assert "dynamic_update_slice" not in pool_writes(final)
    assert copies(final, (0,)) == 0


def test_one_gather_one_scatter_and_every_source_stays() -> None:
    graph = graph_of(per_sequence_loop, ARGS, ONE)
    final, _ = rewrite(rebatch, graph)
    names = primitives(final)
    assert (names.count("gather"), names.count("scatter"), len(names)) == (1, 1, 8)
    assert (copies(graph, (0,)), copies(final, (0,))) == (LANES + 1, 0)
    (scatter,) = (eqn for eqn in final.program.jaxpr.eqns if eqn.primitive.name == "scatter")
    assert scatter.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    assert scatter.params["unique_indices"]
    first = per_sequence_loop.__code__.co_firstlineno
    lines = {int(ir.source_of(eqn).rsplit(":", 1)[1]) for eqn in final.program.jaxpr.eqns}
    assert lines <= set(range(first, first + 7))


@pytest.mark.slow
def test_eight_lanes_of_a_delta_rule() -> None:
    """The step that was measured: nine copies of the pool before, none after."""
    lanes, count = 8, 33
    contract = LaneContract(
        (Pool("state"), SlotMap("state", count), Shared(), Lane(), Lane(), Lane()), (Pool("state"), Lane())
    )

    def step(pool, slots, w, q, k, v):
        out = []
        for i in range(lanes):
            state = lax.dynamic_index_in_dim(pool, slots[i], 0, keepdims=False)
            error = v[i] - (state * k[i][:, :, None]).sum(1)
            state = state * 0.9 + k[i][:, :, None] * error[:, None, :]
            pool = lax.dynamic_update_index_in_dim(pool, state, slots[i], 0)
            out.append((state * q[i][:, :, None]).sum(1).reshape(-1) @ w)
        return pool, jnp.stack(out)

    rows = [jnp.zeros((lanes, 4, 8))] * 3
    args = (jnp.zeros((count, 4, 8, 8)), jnp.zeros(lanes, jnp.int32), jnp.zeros((32, 16)), *rows)
    graph = graph_of(step, args, contract)
    final, report = rewrite(rebatch, graph)
    assert_same(graph, final, tolerance=1e-5)
    assert report.startswith("re-batched 8 lanes x ")
    assert report.endswith("equations of pool 'state'")
    assert (copies(graph, (0,)), copies(final, (0,))) == (lanes + 1, 0)


def test_levels_between_batched_layers() -> None:
    contract = LaneContract((Pool("a"), Pool("b"), SlotMap(("a", "b"), SLOTS), Lane()), (Pool("a"), Pool("b"), Lane()))

    def step(a, b, slots, x):
        for mix in (jnp.tanh, jnp.sin):
            rows = []
            for i in range(LANES):
                rows.append(a[slots[i]] + x[i] * b[slots[i]])
                a = a.at[slots[i]].set(rows[i])
            x = mix(jnp.stack(rows))
            for i in range(LANES):
                b = b.at[slots[i]].set(x[i] + rows[i])
        return a, b, x

    graph = graph_of(step, (pool(), pool(), slots(), x()), contract)
    final, report = rewrite(rebatch, graph)
    # sums of numbers up to 16 with a last place of 1e-6; a product and a sum may be rounded once or twice
    assert_same(graph, final, tolerance=4e-6)
    assert report.count("re-batched") == 3
    assert primitives(final).count("scatter") == 4


def test_rows_that_are_lanes() -> None:
    def step(pool, scale, x):
        for i in range(LANES):
            row = pool[i] * scale + x[i]
            pool = pool.at[i].set(row)
            pool = lax.dynamic_update_slice(pool, row[None, :1] * 2.0, (i, 1, 0))
        return pool, x

    graph = graph_of(step, (jnp.zeros((LANES, *ROW)), jnp.float32(2), x()), ROWS)
    final, report = rewrite(rebatch, graph)
    assert_same(graph, final)
    assert report.startswith(f"re-batched {LANES} lanes x ")


def test_work_without_a_pool_and_rows_of_a_read_map() -> None:
    def step(pool, read, write, x):
        rows = [jnp.sin(pool[read[i]]) + x[i] for i in range(LANES)]
        return pool.at[write].set(jnp.stack(rows)), jnp.stack([row * 2.0 for row in rows], axis=0)

    graph = graph_of(step, (pool(), slots(), slots(), x()), FORK)
    final, report = rewrite(rebatch, graph)
    assert_same(graph, final)
    assert report.startswith(f"re-batched {LANES} lanes x ")
    assert "pool" not in report


def test_single_parts_of_results_are_cut_out_again() -> None:
    def step(pool, slots, x):
        rows = []
        for i in range(LANES):
            rows.append(jnp.tanh(pool[slots[i]] + x[i]))
            pool = pool.at[slots[i]].set(rows[i])
        return pool, jnp.stack(rows[::-1])[::-1]

    graph = graph_of(step, ARGS, ONE)
    final, report = rewrite(rebatch, graph)
    assert_same(graph, final)
    assert "re-batched" in report
    assert primitives(final).count("tanh") == 1


def neighbour(pool, slots, x):
    for i in range(LANES):
        row = pool[slots[(i + 1) % LANES]] + x[i]
        pool = pool.at[slots[i]].set(row)
    return pool, x


def old_version(pool, slots, x):
    """Each lane writes twice, the second time from the original row."""
    for i in range(LANES):
        old = pool
        pool = pool.at[slots[i]].set(x[i])
        pool = pool.at[slots[i]].add(old[slots[i]])
    return pool, x


def summed_between(pool, slots, x):
    total = jnp.float32(0)
    for i in range(LANES):
        pool = pool.at[slots[i]].set(pool[slots[i]] + x[i])
        total = total + pool[:, 0, 0].sum()
    return pool, x * total


def two_maps(pool, first, second, x):
    for i in range(LANES):
        pool = pool.at[first[i]].set(pool[first[i]] + x[i])
        pool = pool.at[second[i]].set(x[i] * 2.0)
    return pool, x


def guarded(pool, slots, x):
    """Some lanes write past the end, so their writes are dropped."""
    for i in range(LANES):
        row = jnp.tanh(pool[slots[i]]) + x[i]
        rows = jnp.where(x[i, 0, 0] > 0, slots[i], SLOTS)
        pool = pool.at[rows].set(row, mode="drop", wrap_negative_indices=False)
    return pool, x


def other_lane_0(pool, slots, x):
    for i in range(LANES):
        row = pool[slots[i]]
        pool = pool.at[slots[i]].set(jnp.sin(row) if i == 0 else jnp.cos(row))
    return pool, x


def other_constant(pool, slots, x):
    for i in range(LANES):
        pool = pool.at[slots[i]].set(pool[slots[i]] * (1.0 + i))
    return pool, x


def in_branches(pool, slots, x):
    for i in range(LANES):
        row = lax.cond(x[i, 0, 0] > 0, jnp.sin, jnp.cos, pool[slots[i]])
        pool = pool.at[slots[i]].set(row)
    return pool, x


def in_whiles(pool, slots, x):
    for i in range(LANES):
        row = lax.while_loop(lambda r: r.sum() < 10.0, lambda r: jnp.abs(r) * 2.0 + 1.0, pool[slots[i]])
        pool = pool.at[slots[i]].set(row)
    return pool, x


def printing(pool, slots, x):
    for i in range(LANES):
        row = pool[slots[i]] + x[i]
        jax.debug.print(f"{i} {{}}", row.sum(), ordered=True)
        pool = pool.at[slots[i]].set(row)
    return pool, x


def random(pool, slots, x):
    for i in range(LANES):
        noise = jax.random.normal(jax.random.key(slots[i]), ROW)
        pool = pool.at[slots[i]].set(pool[slots[i]] + noise)
    return pool, x


@jax.jit
def by_rows(rows):
    return rows / (1.0 + jnp.abs(rows))


rowwise(by_rows, (Lane(),))


def declared(pool, slots, x):
    for i in range(LANES):
        pool = pool.at[slots[i]].set(by_rows(pool[slots[i]]))
    return pool, x


def other_part(pool, slots, x):
    for i in range(LANES):
        pool = pool.at[slots[i], 0].set(pool[slots[i], i] + x[i, 0])
    return pool, x


def at_positions(pool, slots, x):
    for i in range(LANES):
        start = (slots[i], slots[i] // 3, 0)
        part = lax.dynamic_slice(pool, start, (1, 2, 16)) + x[i, None, :2]
        pool = lax.dynamic_update_slice(pool, part, start)
    return pool, x


REFUSED = {
    at_positions: "an index that is neither a constant nor an entry of a slot map",
    other_part: "differ in the box of", old_version: "an old version of a row is read",
    summed_between: "a version of a pool in between is read",
    other_lane_0: "lanes 0 and 1 differ in sin instead of cos",
    other_constant: "lanes 0 and 1 differ in operand 1 of mul", in_branches: "cond at", in_whiles: "while at",
    random: "random_", declared: "is not batched",
}  # fmt: skip


@pytest.mark.parametrize("step", REFUSED)
def test_left_alone_with_the_reason(step) -> None:
    graph = graph_of(step, ARGS, ONE)
    final, report = rewrite(rebatch, graph)
    assert final is graph
    assert report.startswith("left alone: ")
    assert REFUSED[step] in report
    assert "test_rewrites_rebatch.py" in report


def test_more_reads_of_one_lane_stay_its_own() -> None:
    """Lane 0's first row is read before the batched write, and its new row after it."""

    def step(pool, slots, x):
        first = jnp.cos(pool[slots[0], 1])
        for i in range(LANES):
            pool = pool.at[slots[i]].set(jnp.tanh(pool[slots[i]]) + x[i])
        return pool, x.at[0, 0].set(first + pool[slots[0], 1])

    graph = graph_of(step, ARGS, ONE)
    final, report = rewrite(rebatch, graph)
    assert_same(graph, final)
    assert report.startswith(f"re-batched {LANES} lanes x ")
    assert primitives(final).count("tanh") == 1


def test_one_more_write_of_one_lane_is_left_alone() -> None:
    def step(pool, slots, x):
        for i in range(LANES):
            pool = pool.at[slots[i]].set(pool[slots[i]] + x[i])
            if i == 2:
                pool = pool.at[slots[i], 1].add(x[i, 2])
        return pool, x

    graph = graph_of(step, ARGS, ONE)
    final, report = rewrite(rebatch, graph)
    assert final is graph
    assert report.startswith("left alone: lane 0 has ")


def test_rows_by_two_maps_are_left_alone() -> None:
    contract = LaneContract((Pool("p"), SlotMap("p", SLOTS), SlotMap("p", SLOTS, disjoint=True), Lane()), ONE.outputs)
    graph = graph_of(two_maps, (pool(), slots(), slots(), x()), contract)
    final, report = rewrite(rebatch, graph)
    assert final is graph
    assert report.startswith("left alone: rows of two slot maps are used at ")


def test_entries_behind_a_guard_are_not_taken_for_the_entries() -> None:
    graph = graph_of(guarded, ARGS, ONE)
    assert_same(graph, rewrite(rebatch, graph)[0])


def test_rows_of_neighbours_are_no_lane_s_work() -> None:
    graph = graph_of(neighbour, ARGS, ONE)
    final, _ = rewrite(rebatch, graph)
    assert final is graph


def test_a_dimension_as_long_as_there_are_lanes_is_not_taken_for_them() -> None:
    """Four taps of a convolution on four lanes."""

    def step(pool, slots, x):
        windows = jnp.tanh(x)
        return pool.at[slots].set(x), jnp.stack(
            [jnp.exp(x[:, i]) + jnp.sin(windows[:, i]) for i in range(LANES)], axis=1
        )

    graph = graph_of(step, ARGS, ONE)
    assert rewrite(rebatch, graph) == (graph, "")


TWO = LaneContract((Pool("p"), SlotMap("p", SLOTS), Lane(), Lane()), (Pool("p"), Lane(), Lane()))


def two_reads(pool, slots, q, k):
    """The delta rule's reads of every lane's state by its query and its key, scaled."""
    read = jnp.einsum("nik,nkv->niv", jnp.stack([q, k], axis=1), pool[slots])
    read_q, read_k = jnp.moveaxis(read, 1, 0)
    scale = jnp.exp(-jnp.abs(q[:, :1]))
    read_q, read_k = scale * read_q, scale * read_k
    return pool.at[slots].add(read_k[:, None]), read_q, read_k


def two_sequences(pool, slots, q, k):
    outs = []
    for i in range(2):
        row = jnp.tanh(pool[slots[i]]) + k[i][:, None]
        pool = pool.at[slots[i]].set(row)
        outs.append(q[i] @ row)
    return pool, jnp.stack(outs), k


def test_two_reads_of_two_lanes_are_no_lanes() -> None:
    args = (pool(), slots()[:2], jnp.zeros((2, ROW[0])), jnp.zeros((2, ROW[0])))
    graph = graph_of(two_reads, args, TWO)
    assert rewrite(rebatch, graph) == (graph, "")
    loop = graph_of(two_sequences, args, TWO)
    final, report = rewrite(rebatch, loop)
    assert_same(loop, final, tolerance=1e-5)
    assert report.startswith("re-batched 2 lanes x ")


def test_as_many_slices_of_a_vocabulary_as_lanes_are_no_lanes() -> None:
    """The logits of every token of every lane are searched in slices."""

    def step(pool, slots, x):
        logits = jnp.repeat(x.reshape(LANES, -1), 3, axis=0).reshape(3 * LANES, LANES, -1)
        highest = [jnp.exp(logits[:, i]).max(axis=-1) for i in range(LANES)]
        return pool.at[slots].set(x), jnp.stack(highest, axis=1).reshape(LANES, 3, LANES)

    graph = graph_of(step, ARGS, ONE)
    assert rewrite(rebatch, graph) == (graph, "")


def test_one_lane_has_nothing_to_batch() -> None:
    step = lambda pool, slots, x: (pool.at[slots[0]].set(pool[slots[0]] + x[0]), x)
    graph = graph_of(step, (pool(), slots()[:1], x()[:1]), ONE)
    assert rewrite(rebatch, graph) == (graph, "")


def test_effects_keep_their_order_and_their_values() -> None:
    graph = graph_of(printing, ARGS, ONE)
    final, report = rewrite(rebatch, graph)
    assert_same(graph, final)
    assert "re-batched" in report
    prints = [eqn.params["fmt"] for eqn in final.program.jaxpr.eqns if eqn.effects]
    assert prints == [f"{i} {{}}" for i in range(LANES)]


form, box_of = SameWork._form, LaneOwners.box


def careless_of_literals(self, atom, lane):
    return "literal" if isinstance(atom, ir.Literal) else form(self, atom, lane)


def careless_of_starts(self, eqn):
    row = box_of(self, eqn)
    return row and (row[0], dataclasses.replace(row[1], starts=(0,) * len(row[1].starts)))


def careless_of_order(self):
    return {self.first_version(version)[0]: version for version in self.writes}


@pytest.mark.parametrize(("where", "label", "instead", "step"), [
    (LaneOwners, "box", careless_of_starts, other_part),
    (SameWork, "_form", careless_of_literals, other_constant),
    (SameWork, "last_versions", careless_of_order, old_version),
    (batching, "_rows", lambda lanes, slots: jnp.arange(lanes, dtype=jnp.int32), per_sequence_loop),
], ids=["box", "operand", "order", "rows"])  # fmt: skip
def test_broken_passes_are_seen(where, label, instead, step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, label, instead)
    graph = graph_of(step, ARGS, ONE)
    run = rebatch(graph)
    assert run is not graph
    with pytest.raises(AssertionError):
        assert_same(graph, run)


def test_lanes_on_the_null_slot_do_not_disturb_the_others() -> None:
    graph = graph_of(per_sequence_loop, ARGS, ONE)
    final, _ = rewrite(rebatch, graph)
    pools = np.zeros((SLOTS, *ROW), np.float32)
    pools[0] = np.nan
    operands = [pools, np.array([0, 5, 0, 2], np.int32), np.ones((LANES, *ROW), np.float32)]
    new, sums = jax.jit(ir.as_function(final.program))(*operands)
    assert np.isfinite(np.asarray(new)[1:]).all()
    assert np.isfinite(np.asarray(sums)[[1, 3]]).all()
