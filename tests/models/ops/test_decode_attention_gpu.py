"""The kernel for attention of few tokens equals the plain form and separates lanes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paged_caches import consecutive_pages, in_pages

from hybridlm.families import KVCache, attend
from ir_passes import IsolationError, Lane, LaneContract, Note, PageTable, Pool, prove_isolation
from models import Devices
from models.ops.decode_attention_gpu import KERNEL, part_count, part_turns, tile_rows

CONTEXT = 256
LENGTHS = (0, 1, 127, 128, 129, 250)
KINDS = {"grouped": (6, 2, 16, 32), "one head": (1, 1, 32, 16), "latent": (4, 1, 48, 32)}
"""Heads, key/value heads, sizes of key and value."""
PROMPT = 128
"""Tokens with several tiles of query rows for each key/value head."""


def operands(
    kind: str, tokens: int, dtype: Any = jnp.float32, context: int = CONTEXT, lengths: Sequence[int] = LENGTHS
) -> tuple[Any, ...]:
    """Random lanes of different lengths over NaN, on consecutive pages; the first is idle."""
    rng = np.random.default_rng(tokens)
    heads, kv_heads, size, value_size = KINDS[kind]
    lanes, ends = len(lengths), np.array(lengths, np.int32)
    query = rng.normal(size=(lanes, tokens, heads, size)).astype(np.float32)
    key, value = (rng.normal(size=(lanes, kv_heads, context, count)).astype(np.float32) for count in (size, value_size))
    first = np.maximum(ends - tokens, 0)
    valid = np.arange(tokens)[None] < (ends - first)[:, None]
    for lane, length in enumerate(lengths):
        key[lane, :, length:] = value[lane, :, length:] = np.nan
        query[lane, ~valid[lane]] = np.nan
    key, value = (in_pages(array) for array in (key, value))
    cache = KVCache(jnp.asarray(key, dtype), None if kind == "latent" else jnp.asarray(value, dtype))
    index = (first[:, None] + np.arange(tokens)[None]).astype(np.int32)
    return jnp.asarray(query), cache, jnp.asarray(index), jnp.asarray(valid), consecutive_pages(lanes, len(key))


compiled_attend = jax.jit(attend, static_argnames=("blocks", "value_size", "devices", "window"))


def run(
    kind: str, inputs: tuple[Any, ...], kernels: str = "interpret", platform: str = "cpu", window: int | None = None
) -> np.ndarray:
    *operands, pages = inputs
    value_size, blocks = KINDS[kind][3], pages.shape[1]
    devices = Devices(platform=platform, kernels=kernels)
    settings = {"blocks": blocks, "value_size": value_size, "devices": devices, "window": window}
    return np.asarray(compiled_attend(*operands, pages=pages, **settings))


def scattered(cache: KVCache, pages: jax.Array) -> tuple[KVCache, jax.Array]:
    """Return a pool with permuted pages among pages of NaN; idle lanes lack pages."""
    moved = np.random.default_rng(3).permutation(np.arange(1, pages.size + 4))[: pages.size].astype(np.int32)

    def pool(array: jax.Array) -> jax.Array:
        return jnp.full((pages.size + 4, *array.shape[1:]), jnp.nan, array.dtype).at[moved].set(array[1:])

    return jax.tree.map(pool, cache), jnp.asarray(moved).reshape(pages.shape).at[0].set(0)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "dtype"), [(1, jnp.float32), (3, jnp.bfloat16), (2, jnp.float16)])
def test_kernel_computes_attention(kind: str, tokens: int, dtype: Any) -> None:
    inputs = operands(kind, tokens, dtype)
    result = run(kind, inputs)
    np.testing.assert_allclose(result, run(kind, inputs, "off"), rtol=2e-5, atol=2e-6)
    assert np.isfinite(result).all() and not result[~np.asarray(inputs[3])].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_in_tiles_has_the_numbers_of_parts_of_one_tile(kind: str) -> None:
    """Up to half the last bit of scores from 16 to 32, 2^-20 of a weight, of values up to 4.

    The interpreter rounds products of other sizes in another order.
    """
    query, cache, index, valid, pages = operands(kind, PROMPT, jnp.bfloat16)
    expected = run(kind, (query, cache, index, valid, pages))
    for first in range(0, PROMPT, 16):
        part = slice(first, first + 16)
        result = run(kind, (query[:, part], cache, index[:, part], valid[:, part], pages))
        np.testing.assert_allclose(result, expected[:, part], rtol=0, atol=4 * 2**-20)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("kernels", ["interpret", "off"])
@pytest.mark.parametrize("kind", KINDS)
def test_pages_in_any_order_give_the_same_bits(kind: str, kernels: str, platform: str) -> None:
    query, cache, *rest, pages = operands(kind, 2)
    pool, moved = scattered(cache, pages)
    np.testing.assert_array_equal(
        run(kind, (query, pool, *rest, moved), kernels, platform),
        run(kind, (query, cache, *rest, pages), kernels, platform),
    )


@pytest.mark.parametrize("kernels", ["interpret", "off"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prime_number_of_blocks(kind: str, kernels: str) -> None:
    """Parts and turns that do not divide the cache, in kernel and plain form."""
    inputs = operands(kind, 2, context=5 * 128, lengths=(0, 3, 511, 513, 640))
    result = run(kind, inputs, kernels, "gpu")
    np.testing.assert_allclose(result, run(kind, inputs, "off"), rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("lengths", "blocks", "tokens"), [
    ((128,), 1, 1), ((0, 0), 2, 1), ((1, 0, 128), 3, 5), ((895, 0, 896, 769, 768), 7, 16),
])  # fmt: skip
def test_lanes_that_end_at_the_edges_of_blocks(kind: str, lengths: tuple[int, ...], blocks: int, tokens: int) -> None:
    """Within 2^-20 of values up to 4 in both forms: half the last bit of scores from 16 to 32."""
    inputs = operands(kind, tokens, context=blocks * 128, lengths=lengths)
    result = run(kind, inputs)
    np.testing.assert_allclose(result, run(kind, inputs, "off"), rtol=2e-5, atol=8 * 2**-20)
    assert not result[~np.asarray(inputs[3])].any()


def test_the_parts_of_wide_values_are_merged_in_columns_that_divide_them() -> None:
    """Five lanes of 33 blocks have 33 parts: 8192 numbers of all parts would be 248 of 256 columns."""
    query, cache, *rest = operands("one head", 1, context=33 * 128, lengths=(0, 1, 129, 4000, 4224))
    value = np.random.default_rng(4).normal(size=(*cache.value.shape[:3], 256)).astype(np.float32)
    inputs = query, KVCache(cache.key, jnp.asarray(value)), *rest
    results = {}
    for kernels in ("interpret", "off"):
        form = partial(attend, blocks=33, value_size=256, devices=Devices(kernels=kernels))
        results[kernels] = np.asarray(jax.jit(form)(*inputs[:-1], pages=inputs[-1]))
    np.testing.assert_allclose(results["interpret"], results["off"], rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [13, 16])
def test_query_rows_that_no_tile_divides(tokens: int) -> None:
    """65 rows are two tiles of 33, 80 rows two of 40; each tile reads the lane's keys once."""
    group, lengths = 5, (0, 9, 130, 256)
    query, cache, *rest = operands("grouped", tokens, lengths=lengths)
    query = np.random.default_rng(2).normal(size=(len(lengths), tokens, 2 * group, 16)).astype(np.float32)
    assert tile_rows(group * tokens, 16, 32, jnp.float32) == -(-group * tokens // 2)
    result = run("grouped", (query, cache, *rest))
    np.testing.assert_allclose(result, run("grouped", (query, cache, *rest), "off"), rtol=2e-5, atol=2e-6)
    assert not result[~np.asarray(rest[1])].any()


@pytest.mark.each_value
@pytest.mark.parametrize("window", [1, 100, 200, 640])
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_attends_within_a_window(kind: str, window: int) -> None:
    inputs = operands(kind, 2, context=5 * 128, lengths=(0, 3, 257, 511, 640))
    result = run(kind, inputs, window=window)
    np.testing.assert_allclose(result, run(kind, inputs, "off", window=window), rtol=2e-5, atol=2e-6)
    whole = run(kind, inputs, "off")
    assert np.allclose(result[1:2], whole[1:2], rtol=2e-5, atol=2e-6) == (window >= 3)
    assert np.allclose(result[2:], whole[2:], rtol=2e-5, atol=2e-6) == (window == 640)


def test_rows_of_a_head_are_equal_tiles() -> None:
    """The fewest tiles of up to 64 rows, fewer with wide values; no number of rows has to divide."""
    tiles = {(48, 256): 48, (2048, 256): 64, (96, 256): 48, (32, 512): 32, (2048, 512): 32, (65, 16): 33, (80, 128): 40}
    assert {key: tile_rows(key[0], key[1], key[1], jnp.bfloat16) for key in tiles} == tiles


@pytest.mark.parametrize("last", [-1, 0, 63, 64, 8191, 131071])
def test_parts_of_a_sequence_have_equal_work(last: int) -> None:
    """Each block has one part; short sequences occupy all parts of a long context."""
    parts, block = part_count(16, 131072), 64
    assert parts == 16
    turns = [int(part_turns(jnp.int32(last), jnp.int32(part), parts, block)) for part in range(parts)]
    assert sum(turns) == (last + block) // block and max(turns) - min(turns) <= 1


def test_the_number_of_parts_needs_no_divisor() -> None:
    assert [part_count(16, 128 * blocks) for blocks in (2, 17, 13)] == [2, 16, 13]


@pytest.mark.parametrize(("kind", "tokens"), [*((kind, 2) for kind in KINDS), ("grouped", PROMPT)])
def test_lanes_keep_their_bits(kind: str, tokens: int) -> None:
    query, cache, *rest, pages = operands(kind, tokens)
    expected = run(kind, (query, cache, *rest, pages))
    for bad in (0, 1):
        poisoned = jax.tree.map(lambda array, bad=bad: array.at[pages[bad::2].ravel()].set(jnp.nan), cache)
        result = run(kind, (query.at[bad::2].set(jnp.nan), poisoned, *rest, pages))
        other_lanes = np.arange(len(LENGTHS)) % 2 != bad
        np.testing.assert_array_equal(result[other_lanes], expected[other_lanes])


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["interpret", "off"])
@pytest.mark.parametrize(("kind", "tokens"), [*((kind, 2) for kind in KINDS), ("grouped", PROMPT)])
def test_reads_by_page_are_proved_in_the_kernel_and_outside(kind: str, tokens: int, kernels: str) -> None:
    query, cache, *rest, pages = operands(kind, tokens)
    pools, moved = scattered(cache, pages)

    def step(caches: Any, query: Any, index: Any, valid: Any, pages: Any, change: Any = lambda pages: pages) -> Any:
        devices, size = Devices(kernels=kernels), KINDS[kind][3]
        whole, window = (
            attend(query, caches, index, valid, CONTEXT // 128, size, devices, pages=change(pages), window=window)
            for window in (None, 3)
        )
        return whole + window, caches

    pool = Pool("pages", dims=("page", "kv_head", "context", "value"))
    contract = LaneContract((pool, Lane(), Lane(), Lane(), PageTable("pages", len(pools.key))), (Lane(), pool))
    args = pools, query, *rest, moved
    proof = prove_isolation(step, args, contract)
    names = [note.about for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert {name.startswith((KERNEL.name, "merge_parts_kernel")) for name in names} == (
        {True} if kernels == "interpret" else set()
    )
    for change in (lambda pages: jnp.roll(pages, 1, axis=0), lambda pages: pages + 1, jnp.ones_like):
        with pytest.raises(IsolationError):
            prove_isolation(partial(step, change=change), args, contract)


@pytest.mark.parametrize(("rows", "size", "value"), [(1, 24, 16), (1, 16, 8), (1, 1024, 16)])
def test_other_sizes_are_left_to_the_plain_form(rows: int, size: int, value: int) -> None:
    query, key = jnp.zeros((1, rows, 2, size)), jnp.zeros((3, 2, 128, size))
    assert not KERNEL.supports(query, key, jnp.zeros((3, 2, 128, value)), value)
