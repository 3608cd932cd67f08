"""The delta-net and attention layers against a float64 forward that is written from their equations."""

from typing import Any

import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx
from float64_reference import gated_attention, gated_delta_net
from mixer_lanes import check_equations, check_lengths

from hybridlm.families import AttentionConfig, GatedDeltaNetConfig, QkNorm, Rope
from models import KV_BLOCK

HIDDEN, EPS = 24, 1e-6
LENGTHS = (150, 67, 0)
"""More than a block of the cache and two chunks of the recurrence."""
# Float32 rounding, amplified by the gated norm where a head reads almost nothing; attention has no such place.
DELTA_NET_TOLERANCE = 5e-4

DELTA_NETS = {
    "one value head per key head": GatedDeltaNetConfig(2, 2, 16, 16, 4, EPS),
    "two, wider values": GatedDeltaNetConfig(2, 4, 8, 12, 4, EPS),
    "four, wider keys, three taps": GatedDeltaNetConfig(1, 4, 16, 8, 3, EPS),
}
ATTENTIONS = {
    "quarter of the head rotated": (4, 2, 16, Rope(4, 1e4)),
    "half, one key head": (4, 1, 12, Rope(6, 1e4)),
    "all, no grouping": (2, 2, 8, Rope(8, 1e4)),
}


def layer(config: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a layer, and its parameters in float64 by their names in a checkpoint."""
    module = filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), random_values(0))
    named = {".".join(map(str, path)): value for path, value in nnx.to_flat_state(nnx.state(module, nnx.Param))}
    plain = {name for name in named if name in ("A_log", "dt_bias") or name.endswith(".weight")}
    return module, {
        name if name in plain else f"{name}.weight": np.asarray(value[...], np.float64) for name, value in named.items()
    }


@pytest.mark.parametrize("name", DELTA_NETS)
def test_delta_net(name: str) -> None:
    config = DELTA_NETS[name]
    module, weights = layer(config)
    fields = {
        "linear_num_key_heads": config.key_heads, "linear_num_value_heads": config.value_heads, "rms_norm_eps": EPS,
        "linear_key_head_dim": config.key_size, "linear_value_head_dim": config.value_size,
        "linear_conv_kernel_dim": config.kernel,
    }  # fmt: skip

    def equations(x: np.ndarray) -> dict[str, np.ndarray]:
        expected = gated_delta_net(x, weights, fields)
        return {"out": expected.hidden, "recurrent": expected.recurrent, "conv": expected.conv}

    check_equations(module, HIDDEN, equations, LENGTHS, DELTA_NET_TOLERANCE)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    heads, kv_heads, size, rope = ATTENTIONS[name]
    module, weights = layer(AttentionConfig(heads, kv_heads, size, rope, QkNorm(EPS, offset=1.0), output_gate=True))
    fields = {
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size, "rms_norm_eps": EPS,
        "rope_theta": rope.theta, "partial_rotary_factor": rope.size / size,
    }  # fmt: skip
    check_equations(module, HIDDEN, lambda x: {"out": gated_attention(x, weights, fields)}, LENGTHS, blocks=2)
    check_lengths(module, HIDDEN, (1, 4, KV_BLOCK + 2), 2e-5, {"key": 2e-5, "value": 2e-5}, blocks=2)
