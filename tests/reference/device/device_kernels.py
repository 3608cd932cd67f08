"""Operations that have kernels, as functions of arrays and `kernels`, and random operands for them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridlm.families import LaneInfo, RecurrenceInputs, delta_rule, layer_conv, linear, ssd
from hybridlm.sampling.sampling import FILTERED, Sampling, sample_tokens
from models import KV_BLOCK, Devices, kv_blocks
from models.mixers.kv_cache import KVCache, attend
from models.ops.expert_dot import expert_dot
from models.state.pages import own_pages

LARGE = {"lanes": 64, "heads": 16, "size": 128, "context": 4096, "prompt": 256, "experts": 64, "vocab": 32768}
SMALL = {**LARGE, "lanes": 8, "context": 1024, "experts": 8}
"""The same kernels, for a machine that only compiles them."""
Operation = Callable[..., Any]


def operations(platform: str, sizes: dict[str, int]) -> Iterator[tuple[str, Operation, tuple[Any, ...]]]:
    """Yield name, function of arrays and `kernels`, and arrays with ragged lanes."""
    rng = np.random.default_rng(11)
    heads, size, context = (sizes[name] for name in ("heads", "size", "context"))
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))
    for tokens in (1, 5, sizes["prompt"]):
        lanes = sizes["lanes"] if tokens < 16 else max(2, sizes["lanes"] // 8)
        lengths = jnp.asarray(rng.integers(0, tokens + 1, lanes).astype(np.int32))
        valid = jnp.arange(tokens)[None] < lengths[:, None]
        fresh = (jnp.arange(lanes) % 3 == 0) & (lengths > 0)
        for form in ("delta rule", "KDA", "SSD"):
            yield f"{form}, {tokens}", partial(recurrence, platform, form), (
                draw(lanes, tokens, heads, size), draw(lanes, tokens, heads, size), draw(lanes, tokens, heads, size),
                -jnp.abs(draw(lanes, tokens, heads, *([size] if form == "KDA" else []))),
                jax.nn.sigmoid(draw(lanes, tokens, heads)), draw(lanes, heads, size, size), valid, fresh,
            )  # fmt: skip
        visits = 8 * lanes * tokens
        yield f"experts, {visits} rows", partial(_experts, platform), (
            draw(visits, heads * size), draw(sizes["experts"], 4 * size, heads * size).astype(jnp.bfloat16),
            jnp.asarray(rng.integers(0, sizes["experts"], visits).astype(np.int32)),
        )  # fmt: skip
        i = jnp.asarray(rng.integers(0, context - tokens, lanes).astype(np.int32))[:, None] + jnp.arange(tokens)[None]
        for form, kv_heads, row in (("attention", 2, size), ("latent attention", 1, size + size // 2)):
            if form != "attention" and row - size < 16:
                continue
            pages = 1 + lanes * kv_blocks(context), kv_heads, KV_BLOCK
            cache = [draw(*pages, item).astype(jnp.bfloat16) for item in (row, size)]
            yield f"{form}, {tokens}", partial(attention, platform, form, size), (
                draw(lanes, tokens, 2 * kv_heads, row), *cache, i, valid
            )  # fmt: skip
        if tokens > 16:
            continue
        yield f"filters, {lanes * tokens} rows", partial(sampled, platform), (
            3 * draw(lanes * tokens, sizes["vocab"]), jnp.asarray(rng.uniform(0.5, 2, lanes * tokens), jnp.float32),
            jnp.asarray(rng.integers(0, 50, lanes * tokens), jnp.int32),
        )  # fmt: skip
        if tokens == 1:
            rows = -(-lanes // 16) * 16
            yield f"product, {rows} rows", partial(_product, platform), (
                draw(rows, heads * size), draw(3 * heads * size, heads * size).astype(jnp.bfloat16)
            )  # fmt: skip
        yield f"short convolution, {tokens}", partial(convolution, platform), (
            draw(lanes, tokens, heads * size), draw(heads * size, 1, 4),
            draw(lanes, 3, heads * size).astype(jnp.bfloat16), lengths, valid, fresh,
        )  # fmt: skip


def recurrence(platform: str, form: str, *arrays: Any, kernels: str) -> Any:
    query, key, value, decay, beta, state, valid, fresh, *slots = arrays
    key = key / jnp.linalg.norm(key, axis=-1, keepdims=True)
    operation, beta = (ssd, None) if form == "SSD" else (delta_rule, beta)
    devices = Devices(platform=platform, kernels=kernels)
    return tuple(operation(RecurrenceInputs(query, key, value, decay, state, valid, fresh, beta, devices, *slots)))


def convolution(platform: str, *arrays: Any, kernels: str) -> Any:
    x, weight, state, lengths, valid, fresh, *slots = arrays
    info = LaneInfo(lengths, jnp.zeros_like(lengths), valid, fresh, 1, slots=slots[0] if slots else None)
    y, new = layer_conv(x, weight, state, info, devices=Devices(platform=platform, kernels=kernels))
    # of a kernel the outputs of padding tokens are zero
    return jnp.where(valid[:, :, None], y, 0.0) if kernels == "off" else y, new


def attention(platform: str, form: str, size: int, *arrays: Any, kernels: str) -> Any:
    query, key, value, i, valid = arrays
    cache, pages = KVCache(key, value if form == "attention" else None), own_pages(len(query), len(key))
    query, devices = query * key.shape[-1] ** -0.5, Devices(platform=platform, kernels=kernels)
    return attend(query, cache, i, valid, pages.shape[1], size, devices, pages=pages)


def _experts(platform: str, *arrays: Any, kernels: str) -> Any:
    return expert_dot(*arrays, devices=Devices(platform=platform, kernels=kernels))


def _product(platform: str, *arrays: Any, kernels: str) -> Any:
    x, weight = arrays
    return linear(x, weight, Devices(platform=platform, kernels=kernels))


def sampled(platform: str, *arrays: Any, kernels: str) -> Any:
    logits, temperature, top_k = arrays
    each = jnp.arange(len(logits), dtype=jnp.uint32)
    of = Sampling(
        temperature, top_k, jnp.full_like(temperature, 0.9), 0 * temperature, jnp.stack([each, each], 1), each
    )
    devices = Devices(platform=platform, kernels=kernels)
    return sample_tokens(logits, of, each.astype(jnp.int32), jnp.int32(FILTERED), devices)
