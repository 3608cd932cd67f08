"""The delta-net and attention layers against a float64 forward that is written from their equations."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled
from flax import nnx
from float64_reference import gated_attention, gated_delta_net

from models.layers.rope import Rope
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.state.pages import kv_blocks
from models.state.shapes import LaneInfo

HIDDEN = 24
# Tokens per step -> tokens of each lane: more than a block of the cache and two chunks of the recurrence, except steps
# of one token, where more would only take longer.
LENGTHS = {1: (20, 1, 7), 16: (150, 1, 67), 150: (150, 1, 67)}
EPS = 1e-6
# Float32 rounding, amplified by the gated norm where a head reads almost nothing; attention has no such place.
DELTA_NET_TOLERANCE = 5e-4
ATTENTION_TOLERANCE = 2e-5

DELTA_NETS = {
    "one value head per key head": {"key_heads": 2, "value_heads": 2, "key_size": 16, "value_size": 16, "kernel": 4},
    "two, wider values": {"key_heads": 2, "value_heads": 4, "key_size": 8, "value_size": 12, "kernel": 4},
    "four, wider keys, three taps": {"key_heads": 1, "value_heads": 4, "key_size": 16, "value_size": 8, "kernel": 3},
}
ATTENTIONS = {
    "quarter of the head rotated": {"heads": 4, "kv_heads": 2, "head_dim": 16, "rotary": 4},
    "half, one key head": {"heads": 4, "kv_heads": 1, "head_dim": 12, "rotary": 6},
    "all, no grouping": {"heads": 2, "kv_heads": 2, "head_dim": 8, "rotary": 8},
}

M = TypeVar("M", bound=nnx.Module)


def random_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return float64 values exact in float32; matrices preserve the size of their operand."""
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=shape) * (1.0 if len(shape) == 1 else 1.2 / np.sqrt(shape[-1]))).astype(np.float32)
        for name, shape in shapes.items()
    }


def with_weights(build: Callable[[], M], weights: dict[str, np.ndarray]) -> M:
    """The module with parameters by the names of the checkpoint, every one of them."""
    remainder = {name.removesuffix(".weight"): array for name, array in weights.items()}
    module = filled(build, lambda name, shape: remainder.pop(name.removesuffix(".weight")))
    assert not remainder
    return module


def delta_net(case: dict[str, Any]) -> tuple[nnx.Module, dict[str, np.ndarray], dict[str, Any]]:
    config = GatedDeltaNetConfig(**case, eps=EPS)
    shapes: dict[str, tuple[int, ...]] = {
        "in_proj_qkv.weight": (config.channels, HIDDEN), "in_proj_z.weight": (config.value_width, HIDDEN),
        "in_proj_b.weight": (config.value_heads, HIDDEN), "in_proj_a.weight": (config.value_heads, HIDDEN),
        "conv1d.weight": (config.channels, 1, config.kernel), "A_log": (config.value_heads,),
        "dt_bias": (config.value_heads,), "norm.weight": (config.value_size,),
        "out_proj.weight": (HIDDEN, config.value_width),
    }  # fmt: skip
    weights = random_weights(shapes)
    module = with_weights(lambda: config.build(HIDDEN, nnx.Rngs(0)), weights)
    fields = {
        "linear_num_key_heads": config.key_heads,
        "linear_num_value_heads": config.value_heads,
        "linear_key_head_dim": config.key_size,
        "linear_value_head_dim": config.value_size,
        "linear_conv_kernel_dim": config.kernel,
        "rms_norm_eps": EPS,
    }
    return module, {name: value.astype(np.float64) for name, value in weights.items()}, fields


def attention(case: dict[str, int]) -> tuple[nnx.Module, dict[str, np.ndarray], dict[str, Any]]:
    size = case["head_dim"]
    config = AttentionConfig(
        case["heads"], case["kv_heads"], size, Rope(case["rotary"], 1e4), QkNorm(EPS, offset=1.0), output_gate=True
    )
    shapes: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (2 * config.heads * size, HIDDEN),
        "k_proj.weight": (config.kv_heads * size, HIDDEN),
        "v_proj.weight": (config.kv_heads * size, HIDDEN),
        "o_proj.weight": (HIDDEN, config.heads * size),
        "q_norm.weight": (size,),
        "k_norm.weight": (size,),
    }
    weights = random_weights(shapes)
    module = with_weights(lambda: config.build(HIDDEN, nnx.Rngs(0)), weights)
    fields = {
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": size,
        "rope_theta": 1e4, "partial_rotary_factor": case["rotary"] / size, "rms_norm_eps": EPS,
    }  # fmt: skip
    return module, {name: value.astype(np.float64) for name, value in weights.items()}, fields


def pieces(inputs: list[np.ndarray], size: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield inputs [lane, size, hidden], real token counts and positions, `size` tokens at a time."""
    for start in range(0, max(map(len, inputs)), size):
        piece = np.full((len(inputs), size, HIDDEN), np.nan, np.float32)
        lengths = np.clip([len(x) - start for x in inputs], 0, size).astype(np.int32)
        for lane, (x, length) in enumerate(zip(inputs, lengths, strict=True)):
            piece[lane, :length] = x[start : start + length]
        yield piece, lengths, start


def run_lanes(module: Any, inputs: list[np.ndarray], size: int) -> tuple[list[np.ndarray], Any]:
    """Return real outputs and the last state, in steps of `size`, from NaN."""
    context = max(map(len, inputs))
    state = module.init_state(len(inputs), context, jnp.float32)
    state = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), state)
    graph, params = nnx.split(module)

    @jax.jit
    def step(params: Any, x: jax.Array, lengths: jax.Array, start: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        positions = jnp.full_like(lengths, start)
        valid = jnp.arange(size, dtype=jnp.int32)[None] < lengths[:, None]
        fresh = (positions == 0) & (lengths > 0)
        info = LaneInfo(lengths, positions, valid, fresh, kv_blocks(context))
        return nnx.merge(graph, params)(jnp.where(valid[:, :, None], x, 0.0), info, state)

    outputs: list[list[np.ndarray]] = [[] for _ in inputs]
    for piece, lengths, start in pieces(inputs, size):
        out, state = step(params, piece, lengths, np.int32(start), state)
        for lane, length in enumerate(lengths):
            outputs[lane].append(np.asarray(out)[lane, :length])
    return [np.concatenate(parts) for parts in outputs], jax.device_get(state)


def random_inputs(size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(length, HIDDEN)).astype(np.float32) for length in LENGTHS[size]]


def steps(names: Iterable[str]) -> list[Any]:
    """List every case with every step size; in short runs each of them once."""
    return [
        pytest.param(name, size, marks=[] if i == j else [pytest.mark.long])
        for i, name in enumerate(names)
        for j, size in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize(("name", "size"), steps(DELTA_NETS))
def test_delta_net(name: str, size: int):
    """Outputs and states of three lanes, token by token, in pieces and at once."""
    module, weights, fields = delta_net(DELTA_NETS[name])
    inputs = random_inputs(size)
    outputs, state = run_lanes(module, inputs, size)
    for lane, (x, result) in enumerate(zip(inputs, outputs, strict=True)):
        expected = gated_delta_net(x.astype(np.float64), weights, fields)
        np.testing.assert_allclose(result, expected.hidden, rtol=0, atol=DELTA_NET_TOLERANCE)
        np.testing.assert_allclose(state.recurrent[lane], expected.recurrent, rtol=0, atol=1e-5)
        np.testing.assert_allclose(state.conv[lane], expected.conv, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "size"), steps(ATTENTIONS))
def test_attention(name: str, size: int):
    """Outputs of three lanes, token by token, in pieces and at once."""
    module, weights, fields = attention(ATTENTIONS[name])
    inputs = random_inputs(size)
    outputs, _ = run_lanes(module, inputs, size)
    for x, result in zip(inputs, outputs, strict=True):
        expected = gated_attention(x.astype(np.float64), weights, fields)
        np.testing.assert_allclose(result, expected, rtol=0, atol=ATTENTION_TOLERANCE)
