"""Reads and writes of kernels are counted in their programs; excessive ones are found.

More than 300 lines: one section for each kernel.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax, ref
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from recurrence_cases import FORMS, inputs, several

from hybridlm.families import LaneInfo, MoeConfig, RecurrenceInputs, RouterConfig, delta_rule
from hybridlm.sampling.filter_cutoffs import MAX_BLOCK, filter_cutoffs
from hybridlm.target_report.kernel_reads import with_reads
from ir_passes.kernels.blocks import Blocks
from ir_passes.kernels.reads import SEED, KernelReads, _block, _CountedMemory, _Instance, kernel_reads
from ir_passes.xla_audit.kernels import Kernels, ScheduledKernel
from models import Devices
from models.mixers.kv_cache import KVCache, attend
from models.ops.decode_attention_gpu import decode_attention
from models.ops.expert_dot import expert_dot
from models.ops.expert_rows import matrix_reads, tile_rows
from models.ops.gpu_call import gpu_call
from models.ops.recurrences.chunk_scan_gpu import MAX_ROWS
from models.ops.recurrences.recurrent_step_gpu import recurrent_step

GPU = Devices(platform="gpu", kernels="auto")
EXPERTS, OUT, IN = 64, 32, 128
MATRIX = OUT * IN * 2


def reads(fn: Any, types: tuple[Any, ...], table: tuple[Any, ...]) -> KernelReads:
    (result,) = kernel_reads(jax.make_jaxpr(fn)(*types), table)
    return result


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def instance_loads(kernel: Any, values: tuple[Any, ...], ids: tuple[int, ...]) -> list[int]:
    """Return the bytes that one instance of a kernel loads, for each operand."""
    mapping, program = kernel.params["grid_mapping"], kernel.params["jaxpr"]
    blocks = [Blocks.of(block, mapping.grid) for block in mapping.block_mappings[: mapping.num_inputs]]
    contents = [_block(block, value, ids) for block, value in zip(blocks, values, strict=True)]
    instance = _Instance(ids, mapping.grid, True)
    results = [_CountedMemory(None, result=number) for number in range(mapping.num_outputs)]
    instance.run(program, (), [*map(_CountedMemory, range(len(blocks)), contents), *results])
    return [instance.moved.get(("load", number), 0) for number in range(len(blocks))]


def experts(rows: int) -> tuple[Any, ...]:
    return array(rows, IN), array(EXPERTS, OUT, IN, dtype=jnp.bfloat16), array(rows, dtype=jnp.int32)


@pytest.mark.parametrize("rows", [8, 24, 100, 700])
def test_experts_read_their_matrices_once_for_each_tile_of_rows(rows: int) -> None:
    """Experts without rows are not read; declared reads cover all tiles."""
    chosen = np.random.default_rng(rows).integers(0, EXPERTS, rows).astype(np.int32)
    counts, tile = np.bincount(chosen), tile_rows(rows, EXPERTS)
    result = reads(partial(expert_dot, devices=GPU), experts(rows), (None, None, chosen))
    place = result.shapes.index((EXPERTS, OUT, IN))
    matrices = np.sum(-(-counts // tile))
    assert result.loaded[place] == MATRIX * matrices and matrices <= matrix_reads(rows, tile, EXPERTS)
    assert result.stored == (4 * rows * OUT,), "a masked store of a tile writes the rows of its expert"


@pytest.mark.parametrize("lengths", [(1,) * 8, (1, 0, 1, 1, 0, 1, 0, 1), (0,) * 8, (7, 0, 2, 9, 0, 0, 1, 0)])
def test_idle_lanes_and_padding_read_no_expert(lengths: tuple[int, ...]) -> None:
    """A layer reads the matrices that real tokens choose, once for each tile, and writes zeros for the others."""
    tokens, choices, width = max(1, *lengths), 4, 16
    config = MoeConfig(RouterConfig(EXPERTS, choices), width, devices=GPU)
    graph, state = nnx.split(nnx.eval_shape(lambda: config.build(IN, nnx.Rngs(0))))

    def run(state: Any, x: Any, lengths: Any) -> Any:
        valid = jnp.arange(tokens)[None] < lengths[:, None]
        return nnx.merge(graph, state)(x, LaneInfo(lengths, lengths, valid, lengths > 0, 1), None)[0]

    rows = len(lengths) * tokens
    program = jax.make_jaxpr(run)(state, array(len(lengths), tokens, IN), array(len(lengths), dtype=jnp.int32))
    unknown = [None] * (len(jax.tree.leaves(state)) + 1)
    first, second = kernel_reads(program, (*unknown, np.array(lengths, np.int32)))
    drawn = np.argsort(np.random.default_rng(SEED).random((rows, EXPERTS)))[:, :choices]
    chosen = drawn[(np.arange(tokens)[None] < np.array(lengths)[:, None]).reshape(-1)]
    tiles = np.sum(-(-np.bincount(chosen.reshape(-1), minlength=EXPERTS) // tile_rows(choices * rows, EXPERTS)))
    for kernel, shape in ((first, (EXPERTS, 2 * width, IN)), (second, (EXPERTS, IN, width))):
        assert kernel.loaded[kernel.shapes.index(shape)] == 4 * tiles * shape[1] * shape[2]
    assert (first.written, second.written) == (4 * choices * rows * width, 4 * choices * rows * IN)


@pytest.mark.parametrize("lengths", [(1, 1), (300, 20), (512, 512), (0, 129)])
def test_attention_reads_the_blocks_of_its_lengths(lengths: tuple[int, ...]) -> None:
    """Blocks of 64 positions for each key/value head, whatever the context's limit."""
    kv_heads, size, context = 2, 128, 512
    cache = array(1 + len(lengths) * context // 128, kv_heads, 128, size, dtype=jnp.bfloat16)

    def run(query: Any, key: Any, value: Any, index: Any, valid: Any, pages: Any) -> Any:
        return attend(query, KVCache(key, value), index, valid, context // 128, devices=GPU, pages=pages)

    index = np.asarray(lengths, np.int32)[:, None] - 1
    types = array(len(lengths), 1, 4, size), cache, cache, array(*index.shape, dtype=jnp.int32)
    types += array(*index.shape, dtype=jnp.bool_), array(len(lengths), context // 128, dtype=jnp.int32)
    result, merged = kernel_reads(jax.make_jaxpr(run)(*types), (None, None, None, index, index >= 0, None))
    assert "merge_parts_kernel" in merged.name
    keys, values = (loaded for loaded, shape in zip(result.loaded, result.shapes, strict=True) if shape == cache.shape)
    assert keys == values == sum(-(-length // 64) * 64 for length in lengths) * kv_heads * size * 2


@pytest.mark.parametrize(
    ("lengths", "parts"), [((8192,) * 8, 16), ((131072,) * 8, 16), ((8192,) * 7 + (131072,), 16), ((131072,), 128)]
)
def test_instances_of_a_lane_have_equal_work(lengths: tuple[int, ...], parts: int) -> None:
    """By the lane's length, whatever the context's limit; 8 lanes of 8,192 positions occupy 256 instances."""
    kv_heads, size, context = 2, 256, 131072
    lanes = len(lengths)
    cache = array(1 + lanes * context // 128, kv_heads, 128, size, dtype=jnp.bfloat16)
    pages = array(lanes, context // 128, dtype=jnp.int32)
    types = array(lanes, kv_heads, 8, size), array(lanes, 8, dtype=jnp.int32), cache, cache, pages

    def run(query: Any, limit: Any, key: Any, value: Any, pages: Any) -> Any:
        return decode_attention(query, limit, key, value, size, pages, interpret=False)

    (kernel, _) = [eqn for eqn in jax.make_jaxpr(run)(*types).eqns if eqn.primitive.name == "pallas_call"]
    limit = np.repeat(np.array(lengths, np.int32)[:, None] - 1, 8, axis=1)
    grid = kernel.params["grid_mapping"].grid
    assert grid == (lanes, kv_heads, 1, parts)
    loads, counted = np.zeros(grid, int), dict[tuple[int, int], int]()
    for ids in np.ndindex(grid):
        key = lengths[ids[0]], ids[3]
        if key not in counted:
            counted[key] = instance_loads(kernel, (None, limit, None, None, None), ids)[3]
        loads[ids] = counted[key]
    block = 64 * size * 2
    assert np.sum(loads) == sum(lengths) * kv_heads * size * 2
    assert (np.max(loads, axis=(1, 2, 3)) - np.min(loads, axis=(1, 2, 3)) <= block).all() and np.min(loads) > 0


def test_passes_over_a_vocabulary_are_counted() -> None:
    """The number of a pass and the lanes' settings are unknown: a pass over all five blocks counts."""
    lanes, vocab = 3, 10_007
    lane = array(lanes)
    types = array(lanes, vocab), lane, lane, array(lanes, dtype=jnp.int32), lane
    result = reads(partial(filter_cutoffs, devices=GPU), types, (None,) * 5)
    assert result.loaded[result.shapes.index((lanes, vocab))] == 4 * lanes * 5 * MAX_BLOCK


def range_kernel(bounds: Any, expert: Any, x: Any, weight: Any, out: Any) -> None:
    """Multiply rows by every expert between the first and the last of them."""

    def meet(number: Any, total: Any) -> Any:
        product = lax.dot_general(x[...], weight[number], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        return jnp.where((expert[...] == number)[:, None], product, total)

    out[...] = lax.fori_loop(bounds[0], bounds[1] + 1, meet, jnp.zeros(out.shape, jnp.float32))


def over_a_range(x: Any, weight: Any, expert: Any) -> Any:
    """The expert product with a loop over a range, declaring the rows' experts only."""
    order = jnp.argsort(expert)
    run = gpu_call(
        range_kernel,
        (1,),
        [None] * 4,
        (None, array(x.shape[0], OUT)),
        interpret=False,
        reads={3: x.shape[0] * MATRIX},
    )
    ordered = expert[order]
    return run(jnp.stack([ordered[0], ordered[-1]]), ordered, x[order].astype(weight.dtype), weight)


def whole_context_kernel(limit: Any, key: Any, out: Any) -> None:
    """Sum a lane's keys up to its limit, in a loop over the whole context."""

    def add(block: Any, total: Any) -> Any:
        position = block * 64 + lax.broadcasted_iota(jnp.int32, (64,), 0)
        return total + jnp.where((position < limit[0])[:, None], key[pl.ds(block * 64, 64), :], 0.0)

    total = lax.fori_loop(0, key.shape[0] // 64, add, jnp.zeros((64, key.shape[1]), jnp.float32))
    out[...] = jnp.sum(total, axis=0)


def scheduled(reads: KernelReads, read: int) -> ScheduledKernel:
    name = f"jit(step)/{reads.name}/pallas_call"
    return ScheduledKernel("call", "__gpu$xla.gpu.triton", name, "", read, 0, 0, "", 1, None, (), reads.shapes)


def test_a_loop_over_a_range_of_experts_is_counted() -> None:
    """Eight rows read 64 matrices from first to last; 8 are needed and declared."""
    chosen = np.array([0, 9, 18, 27, 36, 45, 54, 63], np.int32)
    result = reads(over_a_range, experts(8), (None, None, chosen))
    assert result.loaded[3] == EXPERTS * MATRIX
    declared = Kernels((scheduled(result, 8 * MATRIX),))
    counted, uncounted = with_reads(declared, [result], 0)
    assert counted.moved >= EXPERTS * MATRIX > declared.moved and not uncounted


def test_a_loop_over_the_limit_of_a_context_is_counted() -> None:
    lanes, context, size = 2, 512, 128

    def run(limit: Any, key: Any) -> Any:
        specs = [((1,), lambda lane: (lane,)), ((None, context, size), lambda lane: (lane, 0, 0))]
        out = (None, size), lambda lane: (lane, 0)
        return gpu_call(whole_context_kernel, (lanes,), specs, (out, array(lanes, size)), interpret=False)(limit, key)

    result = reads(
        run, (array(lanes, dtype=jnp.int32), array(lanes, context, size)), (np.array([1, 64], np.int32), None)
    )
    assert result.loaded[1] == lanes * context * size * 4


LANES, ROWS, WIDTH = 3, 9, 64


def atomic_exchange(ref: Any, index: Any, value: Any) -> Any:
    return triton.atomic_xchg(ref, (index,), value)


def rows_kernel(slots: Any, state: Any, out: Any, new: Any, *, all_rows: bool) -> None:
    """Double the row of a lane in place, or all rows."""
    place = (slice(None) if all_rows else slots[pl.program_id(0)], slice(None))
    rows = state[place]
    out[...] = rows if rows.ndim == 1 else rows[0]
    new[place] = 2.0 * rows


def doubled(all_rows: bool) -> KernelReads:
    """A kernel over the rows of lanes in a pool, which declares the rows of the lanes only."""
    row = (None, WIDTH), lambda lane: (lane, 0)
    pool = array(ROWS, WIDTH)
    run = gpu_call(
        partial(rows_kernel, all_rows=all_rows),
        (LANES,),
        [None, None],
        [(row, array(LANES, WIDTH)), (None, 1)],
        interpret=False,
        reads={1: LANES * WIDTH * 4},
    )
    return reads(run, (array(LANES, dtype=jnp.int32), pool), (None, None))


def test_rows_of_lanes_in_a_pool_are_counted_and_not_the_pool() -> None:
    result = doubled(all_rows=False)
    assert result.loaded == (4 * LANES, 4 * LANES * WIDTH) and result.stored == (4 * LANES * WIDTH,) * 2


def test_a_kernel_that_writes_more_than_it_declares_is_counted() -> None:
    """Each lane writes all rows of the pool, and declares one."""
    result = doubled(all_rows=True)
    assert result.stored == (4 * LANES * WIDTH, 4 * LANES * ROWS * WIDTH)
    declared = Kernels((replace(scheduled(result, 4 * LANES * WIDTH), written=2 * 4 * LANES * WIDTH),))
    counted, uncounted = with_reads(declared, [result], 0)
    assert counted.moved == sum(result.loaded) + result.written > declared.moved and not uncounted


@pytest.mark.parametrize("exchange", [ref.swap, atomic_exchange])
def test_a_store_that_returns_the_old_numbers_loads_them_too(exchange: Any) -> None:
    def exchange_kernel(state: Any, out: Any, new: Any) -> None:
        out[...] = exchange(new, slice(None), 2.0 * state[...])

    run = gpu_call(exchange_kernel, (1,), [None], [(None, array(WIDTH)), (None, 0)], interpret=False)
    result = reads(run, (array(WIDTH),), (None,))
    assert (result.loaded, result.stored) == ((2 * 4 * WIDTH,), (4 * WIDTH,) * 2)


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_recurrences_read_and_write_the_rows_of_their_lanes(form: str, tokens: int) -> None:
    """And nothing else of a pool; an idle lane's row is neither read nor written."""
    settings = inputs(form, 64, 16) if tokens == 1 else several(form, 64, 16)
    row = 4 * settings.state[0].size
    pool = array(100, *settings.state.shape[1:])
    fields = {name: array(*leaf.shape, dtype=leaf.dtype) for name, leaf in vars(settings).items() if leaf is not None
              and hasattr(leaf, "shape")}  # fmt: skip

    def run(slots: Any, pool: Any, fields: Any) -> Any:
        return tuple(recurrent_step(RecurrenceInputs(**{**fields, "state": pool}, slots=slots), interpret=False))

    lanes = len(settings.valid)
    types = array(lanes, dtype=jnp.int32), pool, fields
    for active in (lanes, 1):
        valid = np.broadcast_to(np.arange(lanes)[:, None] < active, (lanes, tokens))
        values = [None, None, *(valid if name == "valid" else None for name in sorted(fields))]
        result = reads(run, types, tuple(values))
        number = result.shapes.index(pool.shape)
        assert result.loaded[number] == result.stored[1] == active * row


@pytest.mark.parametrize("lengths", [(0, 1, 32, 33, 96), (96,) * 5, (0,) * 5])
def test_prompts_read_the_chunks_of_their_lengths(lengths: tuple[int, ...]) -> None:
    """Values and keys of chunks with real tokens; all outputs are written, and the rows of lanes with tokens alone."""
    tokens, heads, size, chunk = 96, 2, 32, 32
    lanes = len(lengths)
    vectors, gates = array(lanes, tokens, heads, size), array(lanes, tokens, heads)

    def run(
        valid: Any, fresh: Any, query: Any, key: Any, value: Any, decay: Any, beta: Any, pool: Any, slots: Any
    ) -> Any:
        return tuple(delta_rule(RecurrenceInputs(query, key, value, decay, pool, valid, fresh, beta, GPU, slots)))

    valid = np.arange(tokens)[None] < np.array(lengths)[:, None]
    pool = array(9, heads, size, size)
    types = array(lanes, tokens, dtype=jnp.bool_), array(lanes, dtype=jnp.bool_), *[vectors] * 3, gates, gates, pool
    types += (array(lanes, dtype=jnp.int32),)
    values = valid, np.zeros(lanes, bool), *[None] * 7
    (result,) = [item for item in kernel_reads(jax.make_jaxpr(run)(*types), values) if "scan" in item.name]
    chunks = sum(-(-length // chunk) for length in lengths)
    places = (lanes, tokens // chunk, chunk, heads, size)
    numbers = [number for number, shape in enumerate(result.shapes) if shape == places]
    tiles = size // MAX_ROWS
    tile_bytes = 4 * chunks * chunk * heads * size
    # keys in products, of reads and of writes, and queries are read by each tile; a tile reads its part of the values
    assert [result.loaded[number] for number in numbers] == [tiles * tile_bytes, 2 * tiles * tile_bytes, tile_bytes]
    row = 4 * heads * size * size
    assert result.loaded[result.shapes.index(pool.shape)] == np.count_nonzero(lengths) * row
    assert result.stored == (4 * lanes * tokens * heads * size, np.count_nonzero(lengths) * row)
    (products,) = [item for item in kernel_reads(jax.make_jaxpr(run)(*types), values) if "products" in item.name]
    assert products.loaded[1:] == (4 * chunks * chunk * heads * size,) * 2, "queries, and keys"


def test_loads_of_a_small_operand_come_from_the_cache() -> None:
    subject = KernelReads("kernel", ((4,), (8,)), (100, 100), (16, 32))
    assert (subject.read(0), subject.read(16), subject.read(32)) == (200, 116, 48)


def test_a_kernel_with_an_unknown_number_of_iterations_is_named() -> None:
    program = jax.make_jaxpr(over_a_range)(*experts(8))
    assert list(kernel_reads(program, (None, None, None))) == []
    result = reads(over_a_range, experts(8), (None, None, np.arange(8, dtype=np.int32)))
    declared = Kernels((scheduled(result, 8 * MATRIX),))
    assert with_reads(declared, [], 0) == (declared, ("range_kernel",))
