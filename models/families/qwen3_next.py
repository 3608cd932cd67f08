"""Qwen3-Next: fused Gated DeltaNet projections by key head, and MoE except in dense layers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.decoder.decoder import DecoderConfig
from models.families import qwen
from models.families.qwen import qwen_family, read_decoder, read_moe, split_qkv, text_reader
from models.layers.mlp import MlpConfig
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.weights.layer_weights import Path, branch_weights
from models.weights.sources import Weight, rows


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    outer, reader = text_reader("qwen3_next", config)
    layers = reader.integer("num_hidden_layers")
    step = reader.integer("decoder_sparse_step", 1)
    dense = set(reader.integers("mlp_only_layers"))
    moe = read_moe(reader, reader.flag("norm_topk_prob", True))
    mlp = MlpConfig(reader.integer("intermediate_size"))
    forward = [mlp if i in dense or (i + 1) % step else moe for i in range(layers)]
    return read_decoder("qwen3_next", outer, reader, forward)


def projection_rows(config: GatedDeltaNetConfig) -> dict[str, np.ndarray]:
    """Return each projection's rows of the fused projections.

    `in_proj_qkvz` is `[key_heads, q | k | v and z of the value heads]`, `in_proj_ba` is `[key_heads, b | a]`.
    """
    c = config
    group = c.value_heads // c.key_heads
    sizes = [c.key_size, c.key_size, group * c.value_size, group * c.value_size]
    fused = np.arange(c.key_heads * sum(sizes)).reshape(c.key_heads, -1)
    q, k, v, z = (part.reshape(-1) for part in np.split(fused, np.cumsum(sizes)[:-1], axis=1))
    b, a = (part.reshape(-1) for part in np.split(np.arange(2 * c.value_heads).reshape(c.key_heads, -1), 2, axis=1))
    return {"in_proj_qkv": np.concatenate([q, k, v]), "in_proj_z": z, "in_proj_b": b, "in_proj_a": a}


def fused_delta_net_weights(c: GatedDeltaNetConfig, hidden: int, path: Path, name: str) -> list[Weight]:
    """List the parameters of a mixer with two fused input projections."""
    fused = {"in_proj_qkvz": c.channels + c.value_width, "in_proj_ba": 2 * c.value_heads}
    sources = {}
    for part, index in projection_rows(c).items():
        stored = "in_proj_qkvz" if part in ("in_proj_qkv", "in_proj_z") else "in_proj_ba"
        sources[part] = [rows(f"{name}.{stored}.weight", (fused[stored], hidden), index)]
    adapted = {"in_proj_qkv": [split_qkv(c, hidden, name)]}
    return branch_weights(c, hidden, path, name, sources=sources, adapted=adapted)


def weights(config: DecoderConfig) -> list[Weight]:
    return qwen.weights(config, fused_delta_net_weights)


QWEN3_NEXT = qwen_family("qwen3_next", "Qwen3Next", read_config, weights)
