"""Kernel operations in published sizes, with device operands and float64 results."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from device_exact import exact_attention, exact_convolution, exact_product, exact_recurrence
from device_kernels import attention, convolution, recurrence, sampled
from flax import nnx
from packed_weights import Form

from hybridlm.families import linear
from models import KV_BLOCK, Devices
from models.layers.norms import NormConfig
from models.ops.quantised_experts import experts_product
from models.ops.quantised_weight import QuantisedWeight

Comparison = tuple[Any, Any]
"""Numbers of a result, and the same in float64."""


@dataclass(frozen=True)
class KernelCase:
    """One operation in one size.

    Attributes:
        name: model, operation, tokens x lanes, context.
        run: function of the operands and `kernels`.
        operands: makes the operands on the device.
        compared: (operands, results) -> results of a lane or row with the same in float64.
        moved: bytes that the operation reads and writes at least, by the lengths of its lanes.
        varied: number of an operand that alternates while the operation is timed.
        states: number of an operand -> number of the result in its memory.
    """

    name: str
    run: Callable[..., Any] = field(repr=False)
    operands: Callable[[], tuple[Any, ...]] = field(repr=False)
    compared: Callable[[tuple[Any, ...], tuple[Any, ...]], list[Comparison]] = field(repr=False)
    moved: int
    varied: int = 0
    states: Mapping[int, int] = field(default_factory=dict)


ATTENTION = (
    # model, query heads, key/value heads, size, latent keys, tokens, lanes, context, positions of each lane
    ("Qwen3.5-35B", 16, 2, 256, 0, 1, 8, 131072, 131072), ("Qwen3.5-35B", 16, 2, 256, 0, 1, 8, 131072, 4096),
    ("Kimi-Linear", 32, 1, 512, 64, 1, 12, 8192, 8192), ("Nemotron-3", 32, 2, 128, 0, 1, 64, 8192, 8192),
    ("Qwen3.5-35B", 16, 2, 256, 0, 5, 8, 8192, 8192), ("Granite-4.0-H", 32, 8, 128, 0, 1, 8, 512, 512),
    ("LFM2-1.2B", 32, 8, 64, 0, 1, 64, 8192, 8192), ("Nemotron-3", 32, 2, 128, 0, 1, 1, 131072, 131072),
    ("LFM2-1.2B", 32, 8, 64, 0, 16, 8, 512, 512), ("Falcon-H1", 20, 4, 128, 0, 2, 8, 8192, 8192),
    ("Kimi-Linear", 32, 1, 512, 64, 2, 8, 8192, 8192), ("Kimi-Linear", 32, 1, 512, 64, 1, 1, 131072, 131072),
    ("Qwen3.5-35B", 16, 2, 256, 0, 1, 64, 4096, 4096), ("Granite-4.0-H", 32, 8, 128, 0, 5, 64, 512, 512),
    ("Qwen3.5-35B", 16, 2, 256, 0, 256, 8, 512, 512), ("Kimi-Linear", 32, 1, 512, 64, 256, 8, 512, 512),
)  # fmt: skip
RECURRENCES = (
    # model, form, key heads, value heads, key, value, tokens, lanes
    ("Qwen3.5-35B", "delta rule", 32, 32, 128, 128, 1, 64), ("Kimi-Linear", "KDA", 32, 32, 128, 128, 1, 64),
    ("Nemotron-3", "SSD", 8, 64, 128, 64, 1, 64), ("Qwen3.5-35B", "delta rule", 32, 32, 128, 128, 1, 8),
    ("Qwen3.5-35B", "delta rule", 32, 32, 128, 128, 5, 8), ("Qwen3.5-35B", "delta rule", 32, 32, 128, 128, 256, 8),
    ("Nemotron-3", "SSD", 8, 64, 128, 64, 256, 8), ("Kimi-Linear", "KDA", 32, 32, 128, 128, 256, 8),
    ("Falcon-H1", "SSD", 2, 32, 256, 128, 2, 8), ("Granite-4.0-H", "SSD", 1, 128, 128, 64, 16, 8),
    ("Kimi-Linear", "KDA", 32, 32, 128, 128, 16, 1), ("Qwen3.5-35B", "delta rule", 32, 32, 128, 128, 2, 1),
)  # fmt: skip
CONVOLUTIONS = (
    # model, channels, taps, tokens, lanes
    ("Qwen3.5-35B", 8192, 4, 1, 64), ("LFM2-1.2B", 2048, 3, 1, 8), ("Nemotron-3", 6144, 4, 5, 8),
    ("Granite-4.0-H", 8448, 4, 16, 1),
)  # fmt: skip
EXPERTS = (
    # model, experts, outputs, inputs, rows, scheme
    ("Qwen3.5-35B", 256, 1024, 2048, 8, ""), ("Qwen3.5-35B", 256, 1024, 2048, 64, ""),
    ("Qwen3.5-35B", 256, 2048, 512, 512, ""), ("Granite-4.0-H", 72, 1536, 4096, 80, ""),
    ("Kimi-Linear", 256, 2048, 2304, 512, ""), ("Qwen3.5-35B", 256, 1024, 2048, 64, "int4"),
    ("Qwen3.5-35B", 256, 1024, 2048, 64, "fp8"), ("Qwen3.5-35B", 256, 1024, 2048, 64, "nvfp4"),
    ("Nemotron-3", 128, 1856, 2688, 48, "int8"), ("Qwen3.5-35B", 256, 1024, 2048, 16384, ""),
)  # fmt: skip
PRODUCTS = (
    # model, outputs, inputs, rows, scheme
    ("Qwen3.5-35B", 12288, 2048, 16, ""), ("Qwen3.5-35B", 12288, 2048, 64, ""), ("Falcon-H1", 21504, 5120, 16, ""),
    ("Qwen3.5-35B", 12288, 2048, 8, "int8"), ("Qwen3.5-35B", 12288, 2048, 8, "int4"),
    ("Qwen3.5-35B", 12288, 2048, 8, "fp8"), ("Qwen3.5-35B", 12288, 2048, 8, "nvfp4"),
    ("Falcon-H1", 21504, 5120, 64, "int4"), ("LFM2-1.2B", 8192, 2048, 1, "int8"),
)  # fmt: skip
NORMS = (("Qwen3.5-35B", 2048, 1), ("Nemotron-3", 2688, 64), ("Falcon-H1", 5120, 8))
"""Model, size, rows."""
FILTERS = (("Qwen3.5-35B", 248320, 64), ("Qwen3.5-35B", 248320, 1), ("LFM2-1.2B", 65536, 8))
PACKED: dict[str, tuple[Form, int]] = {
    "int8": (("int8", False, False), 0),
    "int4": (("int4", False, True), 128),
    "fp8": (("e4m3", False, False), 128),
    "nvfp4": (("e2m1", True, False), 16),
}
"""Scheme -> form of its codes, and entries of a group; 0 for a whole row."""
TINY = (
    (
        ("tiny", 4, 2, 16, 0, 1, 2, 256, 256),
        ("tiny", 4, 1, 32, 16, 2, 2, 256, 100),
        ("tiny", 4, 2, 16, 0, 64, 2, 256, 256),
    ),
    (("tiny", "delta rule", 2, 2, 16, 16, 1, 3), ("tiny", "SSD", 1, 2, 16, 16, 40, 2)),
    (("tiny", 32, 4, 1, 3),),
    (("tiny", 4, 32, 32, 8, ""), ("tiny", 4, 32, 32, 8, "int4")),
    (("tiny", 32, 32, 16, ""), ("tiny", 32, 32, 2, "fp8")),
    (("tiny", 48, 3),),
    (("tiny", 300, 3),),
)
"""The same for a rehearsal."""


def kernel_cases(platform: str, tiny: bool) -> list[KernelCase]:
    """Return all cases, the first of each operation before the second."""
    sizes: tuple[Any, ...] = TINY if tiny else (ATTENTION, RECURRENCES, CONVOLUTIONS, EXPERTS, PRODUCTS, NORMS, FILTERS)
    makers: tuple[Callable[..., KernelCase], ...] = (
        _attention, _recurrence, _convolution, _experts, _product, _norm, _filters,
    )  # fmt: skip
    columns = [[make(platform, *row) for row in rows] for make, rows in zip(makers, sizes, strict=True)]
    longest = max(map(len, columns))
    return [column[number] for number in range(longest) for column in columns if number < len(column)]


def _keys() -> Iterator[jax.Array]:
    key = jax.random.key(11)
    while True:
        key, local = jax.random.split(key)
        yield local


def _normal(keys: Iterator[jax.Array], *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(next(keys), shape, dtype)


def _lengths(lanes: int, tokens: int) -> np.ndarray:
    """Return full lanes, except an idle second and a half-full third."""
    lengths = np.full(lanes, tokens, np.int32)
    lengths[1:3] = [0, -(-tokens // 2)][: lanes - 1]
    return lengths


def _slots(lanes: int) -> np.ndarray:
    """Return the lanes' rows in reverse order; row 0 of the pool is unused."""
    return np.arange(lanes, 0, -1, dtype=np.int32)


def _attention(
    platform: str, model: str, heads: int, kv_heads: int, size: int, latent: int, tokens: int, lanes: int,
    context: int, visible: int,
) -> KernelCase:  # fmt: skip
    positions = visible - tokens - 7 * np.arange(lanes, dtype=np.int32) % max(1, visible // 4)
    i = positions[:, None] + np.arange(tokens, dtype=np.int32)[None]
    form = "latent attention" if latent else "attention"

    def operands() -> tuple[Any, ...]:
        keys = _keys()
        pages = 1 + lanes * context // KV_BLOCK, kv_heads, KV_BLOCK
        caches = [_normal(keys, *pages, item, dtype=jnp.bfloat16) for item in (size + latent, size)]
        caches[1:] = [caches[1][:1]] if latent else caches[1:]
        return _normal(keys, lanes, tokens, heads, size + latent), *caches, jnp.asarray(i), jnp.ones(i.shape, bool)

    def compared(operands: tuple[Any, ...], results: tuple[Any, ...]) -> list[Comparison]:
        query, key, value, position, _ = operands
        lane, blocks = lanes - 1, context // KV_BLOCK

        def positions_of(cache: Any) -> np.ndarray:
            pages = np.asarray(cache[1 + lane * blocks : 1 + (lane + 1) * blocks])
            return pages.swapaxes(0, 1).reshape((1, kv_heads, -1, pages.shape[-1]))

        row, last = (np.asarray(array[lane : lane + 1]) for array in (query, position))
        arrays = row, positions_of(key), None if latent else positions_of(value), last
        exact = exact_attention(arrays[0] * np.float32(key.shape[-1] ** -0.5), arrays[1], arrays[2], arrays[3], size, 0)
        return [(results[0][lane], exact)]

    row = kv_heads * (size + (latent or size)) * 2
    moved = int(np.sum(i[:, -1] + 1)) * row + 4 * lanes * tokens * heads * (2 * size + latent)
    name = f"{model}, {form}, {tokens} x {lanes}, {visible} of {context}"
    return KernelCase(name, partial(attention, platform, form, size), operands, compared, moved)


def _recurrence(
    platform: str, model: str, form: str, key_heads: int, heads: int, key: int, value: int, tokens: int, lanes: int
) -> KernelCase:
    lengths = _lengths(lanes, tokens)

    def operands() -> tuple[Any, ...]:
        keys, source = _keys(), (lanes, tokens)
        vectors = [_normal(keys, *source, key_heads, key) for _ in range(2)]
        vectors[1] /= jnp.linalg.norm(vectors[1], axis=-1, keepdims=True)
        return (
            *vectors, _normal(keys, *source, heads, value),
            -jnp.abs(_normal(keys, *source, heads, *([key] if form == "KDA" else []))),
            jax.nn.sigmoid(_normal(keys, *source, heads)), _normal(keys, lanes + 1, heads, value, key),
            jnp.arange(tokens)[None] < lengths[:, None], jnp.asarray((np.arange(lanes) % 3 == 2) & (lengths > 0)),
            jnp.asarray(_slots(lanes)),
        )  # fmt: skip

    def compared(operands: tuple[Any, ...], results: tuple[Any, ...]) -> list[Comparison]:
        lane, pool, rows = 2 % lanes, operands[5], _slots(lanes)
        by_lane = (*operands[:5], pool[operands[8]], *operands[6:8])
        outputs, states = results[0][lane], results[1][int(rows[lane])]
        pairs = list(zip((outputs, states), exact_recurrence(form, by_lane, lane), strict=True))
        return [*pairs, (results[1][0], np.asarray(pool[0], np.float64))]

    state, token = 4 * heads * value * key, 4 * (2 * key_heads * key + 2 * heads * value + 2 * heads)
    token += 4 * heads * key if form == "KDA" else 0
    moved = 2 * state * int(np.sum(lengths > 0)) + token * int(np.sum(lengths))
    name = f"{model}, {form}, {tokens} x {lanes}"
    return KernelCase(name, partial(recurrence, platform, form), operands, compared, moved, states={5: 1})


def _convolution(platform: str, model: str, channels: int, taps: int, tokens: int, lanes: int) -> KernelCase:
    lengths = _lengths(lanes, tokens)

    def operands() -> tuple[Any, ...]:
        keys = _keys()
        return (
            _normal(keys, lanes, tokens, channels), _normal(keys, channels, 1, taps),
            _normal(keys, lanes + 1, taps - 1, channels, dtype=jnp.bfloat16), jnp.asarray(lengths),
            jnp.arange(tokens)[None] < lengths[:, None], jnp.asarray((np.arange(lanes) % 3 == 2) & (lengths > 0)),
            jnp.asarray(_slots(lanes)),
        )  # fmt: skip

    def compared(operands: tuple[Any, ...], results: tuple[Any, ...]) -> list[Comparison]:
        x, weight, pool, _, _, fresh, _ = operands
        lane = 2 % lanes
        state = pool[int(_slots(lanes)[lane])]
        exact = exact_convolution(x[lane], weight, state, int(lengths[lane]), bool(fresh[lane]))
        return [(results[0][lane], exact), (results[1][0], np.asarray(pool[0], np.float64))]

    moved = 4 * channels * (int(np.sum(lengths)) * 2 + taps) + 2 * 2 * lanes * (taps - 1) * channels
    name = f"{model}, short convolution, {tokens} x {lanes}"
    return KernelCase(name, partial(convolution, platform), operands, compared, moved, states={2: 1})


def _packed(keys: Iterator[jax.Array], shape: tuple[int, ...], scheme: str) -> Any:
    """Return a random matrix `[..., out, in]`, plain in bfloat16 or packed."""
    if not scheme:
        return _normal(keys, *shape, dtype=jnp.bfloat16) * jnp.bfloat16(shape[-1] ** -0.5)
    (kind, full, zero), group = PACKED[scheme]
    group = min(group, shape[-1]) or shape[-1]
    width = shape[-1] // 2 if kind in ("int4", "e2m1") else shape[-1]
    codes = jax.random.randint(next(keys), (*shape[:-1], width), 0, 256, jnp.int32).astype(jnp.uint8)
    codes = jnp.where(codes & 127 == 127, 3, codes).astype(jnp.uint8) if kind == "e4m3" else codes
    codes = codes.astype(jnp.int8) if kind == "int8" else codes
    scale = (0.01 * _normal(keys, *shape[:-1], shape[-1] // group)).astype(jnp.bfloat16)
    full = jnp.abs(_normal(keys, *shape[:-1], 1)) if full else None
    zero = jax.random.randint(next(keys), scale.shape, 0, 16, jnp.int32).astype(codes.dtype) if zero else None
    return QuantisedWeight(codes, scale, full, zero, kind, "bfloat16", in_blocks=False)


def _bytes(shape: tuple[int, ...], scheme: str) -> int:
    types = jax.eval_shape(lambda: _packed(_keys(), shape, scheme))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(types))


def _experts(platform: str, model: str, experts: int, outputs: int, inputs: int, rows: int, scheme: str) -> KernelCase:
    chosen = np.random.default_rng(5).integers(0, experts, rows).astype(np.int32)

    def operands() -> tuple[Any, ...]:
        keys = _keys()
        return _normal(keys, rows, inputs), _packed(keys, (experts, outputs, inputs), scheme), jnp.asarray(chosen)

    run = lambda *operands, kernels: experts_product(*operands, devices=Devices(platform=platform, kernels=kernels))

    def compared(operands: tuple[Any, ...], results: tuple[Any, ...]) -> list[Comparison]:
        x, weight, expert = operands
        tree = jax.tree.map(lambda array: array[int(expert[rows - 1])], weight)
        return [(results[0][rows - 1], exact_product(x, np.asarray(_numbers(tree)), rows - 1))]

    moved = len(set(chosen.tolist())) * _bytes((1, outputs, inputs), scheme) + 4 * rows * (inputs + outputs)
    return KernelCase(f"{model}, experts, {rows} rows {scheme}".strip(), run, operands, compared, moved)


def _product(platform: str, model: str, outputs: int, inputs: int, rows: int, scheme: str) -> KernelCase:
    def operands() -> tuple[Any, ...]:
        keys = _keys()
        return _normal(keys, rows, inputs), _packed(keys, (outputs, inputs), scheme)

    def run(*operands: Any, kernels: str) -> Any:
        x, weight = operands
        return linear(x, weight, Devices(platform=platform, kernels=kernels))

    def compared(operands: tuple[Any, ...], results: tuple[Any, ...]) -> list[Comparison]:
        x, weight = operands
        return [(results[0][rows - 1], exact_product(x, np.asarray(_numbers(weight)), rows - 1))]

    moved = _bytes((outputs, inputs), scheme) + 4 * rows * (inputs + outputs)
    return KernelCase(f"{model}, product, {rows} rows {scheme}".strip(), run, operands, compared, moved)


def _norm(platform: str, model: str, size: int, rows: int) -> KernelCase:
    def operands() -> tuple[Any, ...]:
        keys = _keys()
        return _normal(keys, rows, 1, size), _normal(keys, rows, 1, size), _normal(keys, size)

    def run(x: Any, y: Any, weight: Any, kernels: str) -> Any:
        norm = NormConfig(1e-6, 1.0).build(size, nnx.Rngs(0), Devices(platform=platform, kernels=kernels))
        norm.weight[...] = weight
        return norm(x + y, (x, y))

    def compared(operands: tuple[Any, ...], results: tuple[Any, ...]) -> list[Comparison]:
        x, y, weight = (np.asarray(array, np.float64) for array in operands)
        total = (x + y)[rows - 1]
        return [(results[0][rows - 1], total / np.sqrt(np.mean(total**2) + 1e-6) * (weight + 1.0))]

    return KernelCase(f"{model}, norm, {rows} x {size}", run, operands, compared, 4 * size * (3 * rows + 1))


def _numbers(weight: Any) -> Any:
    return weight.numbers() if isinstance(weight, QuantisedWeight) else weight


def _filters(platform: str, model: str, vocabulary: int, lanes: int) -> KernelCase:
    """Tokens equal the plain form's; float64 offers no comparison."""

    def operands() -> tuple[Any, ...]:
        keys = _keys()
        temperature = jax.random.uniform(next(keys), (lanes,), minval=0.5, maxval=2.0)
        return 3 * _normal(keys, lanes, vocabulary), temperature, jnp.arange(lanes, dtype=jnp.int32) % 50

    def compared(operands: tuple[Any, ...], results: tuple[Any, ...]) -> list[Comparison]:
        plain = jax.jit(partial(sampled, platform, kernels="off"))(*operands)
        return [(results[0], np.asarray(plain if not isinstance(plain, tuple) else plain[0], np.float64))]

    name = f"{model}, filters, {vocabulary} x {lanes}"
    return KernelCase(name, partial(sampled, platform), operands, compared, 4 * vocabulary * lanes)
