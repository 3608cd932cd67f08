"""Kernels in sizes that nothing divides, by Pallas' interpreter: equal to the plain form, every number written.

Prime numbers of heads, blocks, experts, rows and outputs, 33 parts, lanes of 1, 3 and 12. The interpreter fills new
memory with NaN.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import Form, weight_of
from paged_caches import consecutive_pages, in_pages

from hybridlm.families import KVCache, LaneInfo, RecurrenceInputs, attend, delta_rule, layer_conv, ssd
from models import KV_BLOCK, Devices
from models.ops.float32 import silu_gated
from models.ops.linear import joined_linear, linear
from models.ops.quantised_experts import experts_product
from models.ops.rms_norm_gpu import rms_norm

Run = Callable[[Devices], Any]
"""An operation with its operands: devices -> results."""


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def lengths_of(lanes: int, most: int) -> np.ndarray:
    """Return lengths up to `most`: the first lane's, then 0, 1 and numbers between."""
    return np.array([most, 0, 1, *np.random.default_rng(lanes).integers(0, most + 1, lanes)][:lanes], np.int32)


def attention(
    lanes: int,
    kv_heads: int,
    group: int,
    size: int,
    value: int,
    blocks: int,
    tokens: int = 1,
    window: int | None = None,
) -> Run:
    """Attend over contexts of odd lengths; keys longer than values hold the values."""
    ends = np.maximum(lengths_of(lanes, blocks * KV_BLOCK - 3), [tokens] + [0] * (lanes - 1)).astype(np.int32)
    first = np.maximum(ends - tokens, 0)
    caches = [draw(number, lanes, kv_heads, blocks * KV_BLOCK, width) for number, width in enumerate((size, value))]
    for cache in caches:
        for lane, end in enumerate(ends):
            cache[lane, :, end:] = np.nan
    key, values = (jnp.asarray(in_pages(cache), jnp.bfloat16) for cache in caches)
    cache, index = KVCache(key, None if size > value else values), first[:, None] + np.arange(tokens, dtype=np.int32)
    valid, query = np.arange(tokens) < (ends - first)[:, None], draw(2, lanes, tokens, kv_heads * group, size)
    operands = jnp.asarray(query) * size**-0.5, cache, jnp.asarray(index), jnp.asarray(valid), blocks, value
    return lambda devices: attend(*operands, devices, pages=consecutive_pages(lanes, len(key)), window=window)


def experts(rows: int, count: int, outputs: int, inputs: int, form: Form | None = None, gated: bool = False) -> Run:
    """Multiply rows by matrices of their experts; some have none."""
    expert = np.random.default_rng(rows).integers(0, count + 1, rows).astype(np.int32)
    shape = count, outputs * (1 + gated), inputs
    weight = jnp.asarray(draw(1, *shape), jnp.bfloat16) if form is None else weight_of(shape, inputs // 16, form)
    x = jnp.asarray(draw(2, rows, inputs) / inputs)
    return lambda devices: experts_product(x, weight, jnp.asarray(expert), devices, gated)


def recurrence(
    form: str, lanes: int, key_heads: int, heads: int, values: int, keys: int, tokens: int, slots: bool = False
) -> Run:
    """Advance states, one fresh, the second idle."""
    lengths = lengths_of(lanes, tokens)
    valid, fresh = np.arange(tokens) < lengths[:, None], (np.arange(lanes) == lanes // 2) & (lengths > 0)
    query, key = (draw(number, lanes, tokens, key_heads, keys) for number in (0, 1))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value, state = draw(2, lanes, tokens, heads, values), draw(3, lanes + 2 * slots, heads, values, keys)
    decay = -np.abs(draw(4, lanes, tokens, heads, *([keys] if form == "KDA" else [])))
    beta = None if form == "SSD" else jnp.asarray(np.abs(draw(5, lanes, tokens, heads)) % 1)
    query, key, value, decay, state, mask, fresh = map(jnp.asarray, (query, key, value, decay, state, valid, fresh))
    rows = jnp.arange(lanes + 1, 1, -1, dtype=jnp.int32) if slots else None
    operation = ssd if form == "SSD" else delta_rule

    def run(devices: Devices) -> Any:
        output, new = operation(RecurrenceInputs(query, key, value, decay, state, mask, fresh, beta, devices, rows))
        return jnp.where(valid[:, :, None, None], output, 0.0), new

    return run


def convolution(lanes: int, channels: int, tokens: int, taps: int) -> Run:
    lengths = jnp.asarray(lengths_of(lanes, tokens))
    valid, fresh = jnp.arange(tokens)[None] < lengths[:, None], (jnp.arange(lanes) == lanes - 1) & (lengths > 0)
    info = LaneInfo(lengths, jnp.zeros_like(lengths), valid, fresh, 1)
    x, weight, state = (
        jnp.asarray(draw(1, *shape))
        for shape in ((lanes, tokens, channels), (channels, 1, taps), (lanes, taps - 1, channels))
    )

    def run(devices: Devices) -> Any:
        output, new = layer_conv(x, weight, state, info, None, devices)
        return jnp.where(valid[:, :, None], output, 0.0), new

    return run


def product(rows: tuple[int, ...], outputs: int, inputs: int, form: Form | None = None, gated: bool = False) -> Run:
    shape = outputs, inputs
    weight = jnp.asarray(draw(1, *shape), jnp.bfloat16) if form is None else weight_of(shape, inputs // 16, form)
    x = jnp.asarray(draw(2, *rows, inputs) / inputs)
    if gated:
        return lambda devices: joined_linear(x, (weight, weight), devices=devices, joined=silu_gated)
    return lambda devices: linear(x, weight, devices)


def norm(rows: int, size: int) -> Run:
    x, y, weight = jnp.asarray(draw(1, rows, size)), jnp.asarray(draw(2, rows, size)), jnp.asarray(draw(3, size))

    def run(devices: Devices) -> Any:
        if devices.interpret:
            return rms_norm((x, y), weight, 1e-6, 1.0, interpret=True)
        total = x + y
        return total * jax.lax.rsqrt(jnp.mean(total * total, axis=1, keepdims=True) + 1e-6) * (weight + 1.0)[None]

    return run


INT4, E2M1, INT8 = ("int4", False, True), ("e2m1", True, False), ("int8", False, False)
CASES: dict[str, tuple[str, Callable[[], Run]]] = {
    f"{name}: {', '.join(map(str, sizes))}": (kernel, partial(make, *sizes))
    for kernel, name, make, rows in (
        ("decode_attention_kernel", "attention", attention, (
            (1, 1, 3, 16, 16, 61), (1, 1, 1, 16, 256, 33), (3, 7, 1, 32, 16, 5), (12, 1, 13, 16, 16, 7, 2),
            (1, 1, 3, 48, 32, 31), (12, 3, 5, 16, 16, 3, 5, 129), (3, 2, 11, 16, 32, 17, 7), (1, 5, 1, 128, 128, 1),
        )),
        ("expert_rows_kernel", "experts", experts, (
            (1, 7, 48, 16), (33, 13, 80, 112), (97, 3, 112, 48, None, True), (257, 31, 16, 16), (1031, 5, 48, 48),
            (33, 7, 48, 48, INT4), (131, 3, 80, 112, E2M1, True),
        )),
        *((f"{'recurrent_step' if tokens < 17 else 'chunk_scan'}_kernel", form, partial(recurrence, form), (rest,))
          for form, *rest in (
            ("delta rule", 1, 1, 7, 8, 4, 1), ("delta rule", 3, 7, 7, 64, 16, 7),
            ("delta rule", 12, 1, 13, 1, 2, 1, True),
            ("KDA", 3, 5, 5, 16, 64, 16), ("KDA", 1, 3, 3, 2, 1, 1), ("SSD", 12, 1, 11, 64, 8, 1, True),
            ("SSD", 3, 1, 7, 4, 32, 5), ("delta rule", 3, 7, 7, 16, 16, 65), ("KDA", 1, 3, 3, 32, 16, 33),
            ("SSD", 12, 1, 5, 16, 32, 97), ("SSD", 1, 7, 7, 32, 16, 131, True),
        ) for tokens in (rest[5],)),
        ("conv_step_kernel", "convolution", convolution, (
            (1, 112, 1, 2), (3, 208, 7, 5), (12, 528, 16, 8), (12, 16, 3, 4),
        )),
        ("row_product_kernel", "product", product, (
            ((1,), 101, 112), ((3,), 17, 496), ((33,), 131, 48), ((127,), 67, 16), ((12, 1), 13, 80),
            ((7,), 101, 112, None, True), ((5, 31), 101, 48, INT8), ((3, 67), 37, 80, E2M1, True), ((1,), 7, 48, INT4),
        )),
        ("rms_norm_kernel", "norm", norm, ((1, 16), (3, 112), (12, 4112), (127, 48))),
        ("recurrent_step_tpu_kernel", "on TPUs", recurrence, (
            ("delta rule", 1, 7, 7, 8, 16, 1), ("KDA", 3, 24, 24, 5, 7, 1), ("SSD", 12, 1, 40, 3, 130, 1, True),
            ("SSD", 3, 1, 1, 1, 1, 1),
        )),
    )
    for sizes in rows
}  # fmt: skip
"""Name -> kernel, and a maker of an operation."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_size_has_to_divide(name: str) -> None:
    kernel, make = CASES[name]
    run = make()
    devices = Devices(platform="tpu" if "tpu" in kernel else "cpu", kernels="interpret")
    program = jax.jit(partial(run, devices)).trace()
    assert re.search(rf"\b{kernel}\b", str(program.jaxpr))
    results, expected = program.lower().compile()(), jax.jit(partial(run, Devices()))()
    for result, number in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, number, rtol=3e-5, atol=4e-6 * np.max(np.abs(number), initial=1.0))
