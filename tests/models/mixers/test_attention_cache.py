"""KV cache: writes at positions, attended positions, and the number of visited blocks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from card_kernels import operations_on
from paged_caches import as_stored, consecutive_pages, filled_cache, in_pages

from ir_passes.jaxpr import ir
from models import KV_BLOCK, Devices, kv_blocks
from models.mixers.kv_cache import MAX_KEYS_FIRST_QUERIES, KVCache, append, attend, widened

HEADS, KV_HEADS, SIZE, VALUE = 4, 2, 6, 5
cache_of = partial(filled_cache, kv_heads=KV_HEADS, sizes=(SIZE, VALUE))


def test_append_writes_real_tokens_only() -> None:
    cache, pages = cache_of(3, 1, fill=jnp.nan)
    key = np.arange(3 * 2 * KV_HEADS * SIZE, dtype=np.float32).reshape(3, 2, KV_HEADS, SIZE)
    value = np.ones((3, 2, KV_HEADS, VALUE), np.float32)
    index = np.array([[0, 1], [126, 127], [5, 6]], np.int32)
    valid = np.array([[True, False], [True, True], [False, False]])
    new = jax.jit(append)(cache, key, value, index, valid, pages)
    written = np.all(np.isfinite(np.asarray(new.key)), axis=(1, 3))
    assert [np.flatnonzero(page).tolist() for page in written] == [[], [0], [126, 127], []]
    np.testing.assert_array_equal(np.asarray(new.key)[2, :, 127], key[1, 1])
    np.testing.assert_array_equal(np.asarray(new.value)[1, :, 0], value[0, 0])


@pytest.mark.parametrize(("position", "valid"), [(0, True), (KV_BLOCK + 3, True), (0, False), (2 * KV_BLOCK, True)])
def test_one_token_is_written_alike_on_a_gpu(position: int, valid: bool) -> None:
    """Beside padding, which has no page, as a token after the table."""
    cache, pages = cache_of(1, 2, fill=jnp.nan)
    new = np.full((1, 1, KV_HEADS, SIZE), 3.0, np.float32), np.full((1, 1, KV_HEADS, VALUE), 4.0, np.float32)
    operands = cache, *new, np.array([[position]], np.int32), np.array([[valid]]), pages
    result, expected = (jax.jit(partial(append, platform=platform))(*operands) for platform in ("gpu", "cpu"))
    for array, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(array, other)
        assert np.isfinite(array).any() == (valid and position < 2 * KV_BLOCK)


@pytest.mark.target_cuda
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_write_of_a_token_is_two_operations_on_a_gpu(lanes: int) -> None:
    """XLA would split the write of a single token in four."""

    def write(key: jax.Array, value: jax.Array, keys: jax.Array, values: jax.Array, *rest: jax.Array) -> KVCache:
        return append(KVCache(keys, values), key, value, *rest, platform="gpu")

    new = jax.ShapeDtypeStruct((lanes, 1, 2, 256), jnp.float32)
    cache = jax.ShapeDtypeStruct((9, 2, KV_BLOCK, 256), jnp.bfloat16)
    token, valid = (jax.ShapeDtypeStruct((lanes, 1), dtype) for dtype in (jnp.int32, jnp.bool_))
    pages = jax.ShapeDtypeStruct((lanes, 4), jnp.int32)
    _, operations = operations_on("nvidia-h100", write, new, new, cache, cache, token, valid, pages, donated=(2, 3))
    assert operations.count == 2


def test_places_that_append_writes_are_distinct() -> None:
    """XLA knows that indices are unique; otherwise GPUs compare and swap each number."""
    (cache, pages), new = cache_of(2, 1, fill=0.0), jnp.ones((2, 3, KV_HEADS, SIZE))
    index, valid = np.zeros((2, 3), np.int32), np.array([[True, False, False], [False] * 3])
    program = jax.make_jaxpr(lambda *args: append(KVCache(args[0], None), args[1], None, *args[2:]))
    scatters = [
        eqn
        for eqn in ir.all_eqns(program(cache.key, new, index, valid, pages).jaxpr)
        if eqn.primitive.name == "scatter"
    ]
    assert [item.params["unique_indices"] for item in scatters] == [True]


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("platform", "used_bytes", "wide"),
    [("cpu", 3, 256), ("gpu", 5, 256), ("gpu", 8, 256), ("gpu", 8, 1), ("tpu", 3, 256)],
)
@pytest.mark.parametrize("length", [1, 2, KV_BLOCK - 1, KV_BLOCK, KV_BLOCK + 1])
def test_attend_equals_softmax_over_earlier_positions(
    length: int, platform: str, used_bytes: int, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.ops.summed_attention.MIN_WIDE_VALUE", wide)
    rng = np.random.default_rng(length)
    blocks = kv_blocks(length)
    cache, pages = cache_of(2, used_bytes, fill=jnp.nan, platform=platform)
    assert cache.value is not None
    key = rng.normal(size=(2, length, KV_HEADS, SIZE)).astype(np.float32)
    value = rng.normal(size=(2, length, KV_HEADS, VALUE)).astype(np.float32)
    index = np.broadcast_to(np.arange(length, dtype=np.int32), (2, length))
    new = widened(jnp.asarray(key), cache.key.shape[3]), widened(jnp.asarray(value), cache.value.shape[3])
    cache = jax.jit(append)(cache, *new, index, np.ones((2, length), bool), pages)
    query = rng.normal(size=(2, 2, HEADS, SIZE)).astype(np.float32)
    positions = np.array([[length - 1, length], [max(length - 2, 0), 0]], np.int32)
    valid = np.array([[True, False], [True, True]])
    run = jax.jit(partial(attend, value_size=VALUE, devices=Devices(platform=platform), pages=pages))
    out = np.asarray(run(query, cache, positions, valid, np.int32(blocks)))
    for lane, token in ((0, 0), (1, 0), (1, 1)):
        visible = int(positions[lane, token]) + 1
        for head in range(HEADS):
            k, v = key[lane, :visible, head // 2].astype(np.float64), value[lane, :visible, head // 2]
            scores = k @ query[lane, token, head]
            p = np.exp(scores - scores.max())
            np.testing.assert_allclose(out[lane, token, head], p / p.sum() @ v, atol=1e-5)
    assert (out[0, 1] == 0).all()
    # other lanes may need more blocks: that changes no bit
    assert np.asarray(run(query, cache, positions, valid, np.int32(used_bytes))).tobytes() == out.tobytes()


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("platform", "kernels"), [("cpu", "off"), ("gpu", "off"), ("tpu", "off"), ("cpu", "interpret")]
)
@pytest.mark.parametrize("window", [1, 127, 128, 200, 5 * KV_BLOCK])
def test_attend_within_a_window_equals_softmax_over_its_positions(window: int, platform: str, kernels: str) -> None:
    """Lanes have different positions; NaN fills later tokens, positions before the window, and other pages."""
    rng, blocks, sizes = np.random.default_rng(window), 5, (16, 32)
    first, count = np.array([0, 3, 126, 131, 260, 5 * KV_BLOCK - 3], np.int32), 3
    lanes = len(first)
    key, value = (rng.normal(size=(lanes, KV_HEADS, blocks * KV_BLOCK, size)).astype(np.float32) for size in sizes)
    query = rng.normal(size=(lanes, count, HEADS, sizes[0])).astype(np.float32)
    index = first[:, None] + np.arange(count, dtype=np.int32)
    valid = np.ones((lanes, count), bool)
    valid[2, 1:] = False
    hidden = [array.copy() for array in (key, value)]
    for lane in range(lanes):
        for array in hidden:
            array[lane, :, index[lane][valid[lane]][-1] + 1 :] = np.nan
            array[lane, :, : max(int(first[lane]) - window + 1, 0)] = np.nan
    query[~valid] = np.nan
    cache = KVCache(*(as_stored(in_pages(array), platform) for array in hidden))
    devices = Devices(platform=platform, kernels=kernels)
    table = consecutive_pages(lanes, 1 + lanes * blocks)
    run = jax.jit(partial(attend, value_size=sizes[1], devices=devices, pages=table, window=window))
    out = np.asarray(run(query, cache, index, valid, np.int32(blocks)))
    for lane, token in np.argwhere(valid):
        end = int(index[lane, token]) + 1
        seen = slice(max(end - window, 0), end)
        for head in range(HEADS):
            k, v = (array[lane, head // 2, seen].astype(np.float64) for array in (key, value))
            scores = k @ query[lane, token, head]
            p = np.exp(scores - scores.max())
            np.testing.assert_allclose(out[lane, token, head], p / p.sum() @ v, atol=2e-5)
    assert not out[~valid].any()
    # One token at a time: on CPUs, where each block is one iteration, the same bits.
    for token in range(count):
        part = (array[:, token : token + 1] for array in (query, index, valid))
        q, i, real = part
        single = np.asarray(run(q, cache, i, real, np.int32(blocks)))
        np.testing.assert_allclose(single[:, 0], out[:, token], atol=1e-5)


@pytest.mark.slow
def test_a_query_sees_the_same_among_few_and_among_many() -> None:
    """Next to more queries the keys are the other operand of the product."""
    rng = np.random.default_rng(0)
    key, value = (rng.normal(size=(3, KV_HEADS, KV_BLOCK, size)).astype(np.float32) for size in (SIZE, VALUE))
    run = jax.jit(partial(attend, pages=consecutive_pages(2, 3)))
    count = MAX_KEYS_FIRST_QUERIES * KV_HEADS // HEADS + 1
    query = rng.normal(size=(2, count, HEADS, SIZE)).astype(np.float32)
    positions = rng.integers(0, KV_BLOCK, size=(2, count)).astype(np.int32)
    cache, valid = KVCache(jnp.asarray(key), jnp.asarray(value)), np.ones((2, count), bool)
    out = np.asarray(run(query, cache, positions, valid, np.int32(1)))
    for small in (1, 3, count - 1):
        some = run(query[:, :small], cache, positions[:, :small], valid[:, :small], np.int32(1))
        np.testing.assert_allclose(np.asarray(some), out[:, :small], atol=1e-5)
