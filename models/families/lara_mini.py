"""Lara-4-Mini: Gated DeltaNet, attention with and without a window, and MoE in every layer.

Only attention over a window has RoPE.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.fields import paired, read_decoder_config, read_heads, read_kinds
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import DecoderConfig
from models.families.family import text_family
from models.families.qwen import EXPERTS, read_delta_net, read_moe
from models.layers.moe import MoeConfig
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.weights.layer_weights import Path, branch_weights, by_kind, decoder_weights
from models.weights.sources import Weight, WeightSource, split_rows

DEFAULT_POSITIONS = 131_072
KINDS = ("linear_attention", "sliding_attention", "full_attention")
PATTERN = tuple(KINDS[i] for i in (0, 1, 0, 2, 1))
"""Kinds of five layers of the published model, repeated."""


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("lara_mini", config)
    layers = reader.integer("num_hidden_layers", 34)
    eps = reader.number("rms_norm_eps", 1e-6)
    heads, kv_heads, head_dim = read_heads(reader, 4, 128)
    rope = read_rope(reader, head_dim, 1e4, None, DEFAULT_POSITIONS)
    full = AttentionConfig(heads, kv_heads, head_dim, qk_norm=QkNorm(eps))
    sliding = replace(full, rope=rope, window=reader.integer("sliding_window", 512))
    delta_net = read_delta_net(reader, eps, 8, 16, 128)
    kinds = read_kinds(reader, "layer_types", KINDS, layers, [PATTERN[i % len(PATTERN)] for i in range(layers)])
    moe = replace(read_moe(reader, reader.flag("norm_topk_prob", True)), shared_gate=False)
    reader.fixed({"hidden_act": "silu", "attention_bias": False})
    return read_decoder_config(
        reader,
        layers=paired(kinds, dict(zip(KINDS, (delta_net, sliding, full), strict=True)), [moe] * layers),
        eps=eps,
        positions=DEFAULT_POSITIONS,
        rope=rope,
        tied=reader.flag("tie_word_embeddings", True),
    )


def _delta_net(c: GatedDeltaNetConfig, hidden: int, path: Path, name: str) -> list[Weight]:
    """List the parameters of a Gated DeltaNet.

    Rows of `in_proj` are [q | k | v | z | b | a].
    """
    sizes = {"in_proj_qkv": c.channels, "in_proj_z": c.value_width}
    sizes |= dict.fromkeys(("in_proj_b", "in_proj_a"), c.value_heads)
    sources = split_rows(f"{name}.in_proj.weight", sizes, hidden)
    for part, size in sizes.items():
        # The names of transformers' modules, for LoRA adapters and updates.
        sources[part].append(WeightSource({f"{name}.{part}.weight": (size, hidden)}))
    return branch_weights(c, hidden, path, name, {"norm": ("out_norm", "norm")}, sources=sources)


weights = partial(
    decoder_weights, describe=by_kind({MoeConfig: EXPERTS, GatedDeltaNetConfig: ("linear_attn", _delta_net)})
)
LARA_MINI = text_family("lara_mini", "LaraMini", read_config, weights, GatedDeltaNetConfig, AttentionConfig)
