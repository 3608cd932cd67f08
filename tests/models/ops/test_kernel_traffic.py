"""Kernels for GPUs read the matrices and blocks that their tokens need, counted in their programs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from card_kernels import array
from counted_kernels import EXPERTS, IN, MATRIX, OUT, assumed_choices, counted, counted_kernel, experts, instances
from flax import nnx

from hybridlm.families import KVCache, LaneInfo, MoeConfig, RouterConfig, attend
from models import Devices
from models.ops.decode_attention_gpu import decode_attention
from models.ops.expert_dot import expert_dot
from models.ops.expert_rows import matrix_reads, tile_rows

GPU = Devices(platform="gpu", kernels="auto")


@pytest.mark.parametrize("rows", [8, 24, 100, 700])
def test_experts_read_their_matrices_once_for_each_tile_of_rows(rows: int) -> None:
    """Experts without rows are not read; declared reads cover all tiles."""
    chosen = np.random.default_rng(rows).integers(0, EXPERTS, rows).astype(np.int32)
    counts, tile = np.bincount(chosen), tile_rows(rows, EXPERTS)
    result = counted_kernel(partial(expert_dot, devices=GPU), experts(rows), (None, None, chosen))
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
    types = state, array(len(lengths), tokens, IN), array(len(lengths), dtype=jnp.int32)
    unknown = [None] * (len(jax.tree.leaves(state)) + 1)
    first, second = counted(run, types, (*unknown, np.array(lengths, np.int32)))
    chosen = assumed_choices(rows, choices)[(np.arange(tokens)[None] < np.array(lengths)[:, None]).reshape(-1)]
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
    result, merged = counted(run, types, (None, None, None, index, index >= 0, None))
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

    limit = np.repeat(np.array(lengths, np.int32)[:, None] - 1, 8, axis=1)
    grid, instance_loads = instances(run, types, (None, limit, None, None, None))
    assert grid == (lanes, kv_heads, 1, parts)
    loads, counted = np.zeros(grid, int), dict[tuple[int, int], int]()
    for ids in np.ndindex(grid):
        key = lengths[ids[0]], ids[3]
        if key not in counted:
            counted[key] = instance_loads(ids)[3]
        loads[ids] = counted[key]
    block = 64 * size * 2
    assert np.sum(loads) == sum(lengths) * kv_heads * size * 2
    assert (np.max(loads, axis=(1, 2, 3)) - np.min(loads, axis=(1, 2, 3)) <= block).all() and np.min(loads) > 0
