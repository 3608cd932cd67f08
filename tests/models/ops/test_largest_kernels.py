"""Kernels in their largest blocks keep the limits of each card; no GPU is needed."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from card_kernels import CARDS, Case, array, check_limits, delta, info_of, kernels_on, lane_arrays
from packed_weights import weight_of

from hybridlm.families import KVCache, RecurrenceInputs, attend, layer_conv, ssd
from models import KV_BLOCK, Devices
from models.ops.float32 import silu_gated
from models.ops.linear import joined_linear
from models.ops.quantised_experts import experts_product
from models.ops.rms_norm_gpu import MAX_ROWS, MAX_TURN, rms_norm

pytestmark = pytest.mark.target_cuda
GPU = Devices(platform="gpu", kernels="auto")
BF16, F16, F32, I32, BOOL = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32, jnp.bool_


def attention(rows: int, size: int, value: int, dtype: Any, blocks: int = 33, lanes: int = 2) -> Case:
    """Return attention of as many query rows; keys of more numbers than values hold the values."""
    tokens, heads = (rows // 16, 16) if rows > 16 else (1, rows)
    cache = array(1 + lanes * blocks, 1, KV_BLOCK, size, dtype=dtype)

    def run(query: Any, key: Any, values: Any, index: Any, valid: Any, pages: Any) -> Any:
        stored = KVCache(key, values if size <= value else None)
        return attend(query, stored, index, valid, blocks, value, GPU, pages=pages)

    token, pages = (lanes, tokens), array(lanes, blocks, dtype=I32)
    values = array(*cache.shape[:3], value, dtype=dtype)
    return run, (array(*token, heads, size), cache, values, array(*token, dtype=I32), array(*token, dtype=BOOL), pages)


def stored(shape: tuple[int, ...], form: Any) -> Any:
    """Return types of a weight of a plain dtype, or of packed codes with groups of 16 numbers."""
    if not isinstance(form, tuple):
        return array(*shape, dtype=form)
    small = weight_of((*[1 for _ in shape[:-1]], shape[-1]), shape[-1] // 16, form)
    return jax.tree.map(lambda leaf: array(*shape[:-1], leaf.shape[-1], dtype=leaf.dtype), small)


def product(rows: tuple[int, ...], form: Any) -> Case:
    """Return gate, up and activation of some rows."""

    def run(x: Any, *weights: Any) -> Any:
        return joined_linear(x, weights, devices=GPU, joined=silu_gated, dtype=BF16)

    weight = stored((4096, 1024), form)
    return run, (array(*rows, 1024), weight, weight)


def experts(rows: int, form: Any, gated: bool) -> Case:
    run = partial(experts_product, devices=GPU, gated=gated)
    return run, (array(rows, 1024), stored((32, 1024, 1024), form), array(rows, dtype=I32))


def norm(size: int) -> Case:
    rows = array(MAX_ROWS, size)
    return lambda x, y, weight: rms_norm((x, y), weight, 1e-6, 1.0, interpret=False), (rows, rows, array(size))


def surrounded(tokens: int, size: int) -> Case:
    """Return tokens of SSD with factors on its values."""
    lanes, groups, heads = 2, 2, 4

    def run(key: Any, value: Any, decay: Any, skip: Any, state: Any, *each: Any) -> Any:
        info = info_of(tokens, *each)
        inputs = RecurrenceInputs(key, key, value, decay, state, info.valid, info.fresh, None, GPU, info.slots)
        return tuple(ssd(inputs, surroundings=(-decay, skip)))

    arrays = array(lanes, tokens, groups, size), array(lanes, tokens, heads, size), array(lanes, tokens, heads)
    return run, (*arrays, array(heads), array(8, heads, size, size), *lane_arrays(lanes))


def convolution(tokens: int, taps: int) -> Case:
    lanes, channels = 2, 1024

    def run(x: Any, weight: Any, bias: Any, state: Any, *each: Any) -> Any:
        return layer_conv(x, weight, state, info_of(tokens, *each), bias, GPU)

    weight, state = array(channels, 1, taps), array(8, taps - 1, channels, dtype=BF16)
    return run, (array(lanes, tokens, channels), weight, array(channels), state, *lane_arrays(lanes))


LARGEST: dict[str, Case] = {
    "attention, 64 rows of 64": attention(64, 64, 64, BF16), "attention, 64 rows of 128": attention(64, 128, 128, BF16),
    "attention, 80 rows of 256": attention(80, 256, 256, BF16), "attention, 512": attention(64, 512, 512, BF16),
    "attention, 16 keys": attention(64, 16, 512, BF16), "latent attention, 320": attention(64, 320, 256, BF16),
    "latent attention, 576": attention(64, 576, 512, BF16), "merge of 256 parts": attention(1, 512, 512, BF16, 256, 1),
    "attention, float16, 64": attention(64, 64, 64, F16), "attention, float16, 128": attention(64, 128, 128, F16),
    "attention, float16, 256": attention(80, 256, 256, F16), "attention, float32, 64": attention(64, 64, 64, F32),
    "attention, float32, 128": attention(64, 128, 128, F32), "attention, float32, 256": attention(80, 256, 256, F32),
    "product, 128 rows": product((128,), BF16), "product of int4": product((128,), ("int4", False, "offsets")),
    "product, prompts of int8": product((4, 256), ("int8", True, False)),
    "product, prompts of e2m1": product((4, 256), ("e2m1", True, False)),
    "experts, 8192 rows": experts(8192, BF16, False), "experts, gated": experts(8192, BF16, True),
    "experts, float16": experts(8192, F16, False), "experts, float32": experts(8192, F32, False),
    "experts, e2m1": experts(8192, ("e2m1", False, False), False),
    "experts, e4m3, gated": experts(8192, ("e4m3", False, False), True),
    "norm, 128 rows": norm(3 * MAX_TURN),
    "delta rule, 1 token of 256": delta(1, 256, False), "KDA, 1 token of 256": delta(1, 256, True),
    "delta rule, 16 tokens of 128": delta(16, 128, False), "KDA, 16 tokens of 128": delta(16, 128, True),
    "SSD, 1 token of 256": surrounded(1, 256), "SSD, 16 tokens of 128": surrounded(16, 128),
    "delta rule, prompts of 128": delta(1024, 128, False), "KDA, prompts of 128": delta(1024, 128, True),
    "SSD, prompts of 256": surrounded(1024, 256), "convolution, 16 tokens, 8 taps": convolution(16, 8),
}  # fmt: skip
"""Name -> an operation in the largest blocks that `supports` takes."""


@pytest.mark.each_value
@pytest.mark.parametrize("target", CARDS)
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_blocks_keep_the_limits_of_each_card(name: str, target: str) -> None:
    """In prompts a delta rule of 256 would spill 440 bytes."""
    run, arrays = LARGEST[name]
    check_limits(target, run, *arrays)


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("size", [320, 512])
def test_wide_keys_of_other_floats_are_left_to_xla(size: int, dtype: Any) -> None:
    """Split into bfloat16 numbers, they would spill up to 19,160 bytes of a thread."""
    run, arrays = attention(16, size, 256, dtype)
    assert kernels_on("nvidia-h100", run, *arrays) == ()
