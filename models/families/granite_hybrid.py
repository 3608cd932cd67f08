"""Granite-4.0-H (granitemoehybrid): Mamba2 or attention, then an MLP or MoE, with fixed multipliers.

Published files and files of transformers have one tensor for all experts.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.config.fields import read_decoder_config, read_heads, read_kinds, spelled
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.families.family import text_family
from models.families.mamba.mamba2_fields import HYBRID_FIELDS, mamba2_weights, read_mamba2
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.router import RouterConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba2 import Mamba2Config
from models.weights.layer_weights import Path, branch_weights, by_kind, decoder_weights
from models.weights.sources import Weight, WeightSource, split_rows

DEFAULT_POSITIONS = 2_048


def read_layer_types(reader: ConfigReader, layers: int) -> list[str]:
    """Read `layer_types` in either spelling; without it every layer is Mamba2."""
    name = spelled(reader, "layers_block_type", "layer_types")
    return read_kinds(reader, name, ["linear_attention", "full_attention"], layers, ["linear_attention"] * layers)


def read_feed_forward(reader: ConfigReader) -> BranchConfig:
    """Read the feed-forward layer: shared MLP, or MoE with softmax over chosen logits."""
    experts = reader.integer("num_local_experts", 8, minimum=0)
    shared = reader.integer("shared_intermediate_size", 1024)
    width = reader.integer("intermediate_size", 11008)
    per_token = reader.integer("num_experts_per_tok", 2, minimum=0)
    if not experts:
        return MlpConfig(shared)
    if not 1 <= per_token <= experts:
        reader.fault("num_experts_per_tok", f"at least 1 and at most num_local_experts ({experts})")
        per_token = 1
    return MoeConfig(RouterConfig(experts, per_token, "softmax_of_chosen"), width, shared)


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("granitemoehybrid", config)
    eps = reader.number("rms_norm_eps", 1e-6)
    heads, kv_heads, head_dim = read_heads(reader)
    rope = read_rope(reader, head_dim, 1e4, None, DEFAULT_POSITIONS)
    positions = reader.choice("position_embedding_type", [None, "rope", "nope"], None)
    attention = AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        rope if positions == "rope" else None,
        scale=reader.number("attention_multiplier", 1.0),
    )
    width = reader.integer("mamba_expand", 2) * reader.integer("hidden_size")
    mixers: dict[str, BranchConfig] = {
        "linear_attention": read_mamba2(reader, HYBRID_FIELDS, eps, width),
        "full_attention": attention,
    }
    reader.fixed({"hidden_act": "silu", "normalization_function": "rmsnorm"})
    reader.fixed(dict.fromkeys(("attention_bias", "mamba_proj_bias"), False))
    reader.get("init_method")
    forward = read_feed_forward(reader)
    types = read_layer_types(reader, reader.integer("num_hidden_layers"))
    return read_decoder_config(
        reader,
        tuple((mixers[kind], forward) for kind in types),
        eps,
        reader.flag("tie_word_embeddings", False),
        DEFAULT_POSITIONS,
        attention.rope,
        embedding_multiplier=reader.number("embedding_multiplier", 1.0),
        residual_multiplier=reader.number("residual_multiplier", 1.0),
        logits_multiplier=1.0 / reader.number("logits_scaling", 1.0),
    )


def _halves(name: str, width: int, hidden: int, module: str = "") -> dict[str, list[WeightSource]]:
    """Return the sources of an MLP's gate and up matrices, halves of one tensor."""
    sizes = {f"{module}gate_proj": width, f"{module}up_proj": width}
    return split_rows(f"{name}.input_linear.weight", sizes, hidden)


def _mlp(c: MlpConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
    names, sources = {"down_proj": "shared_mlp.output_linear"}, _halves(f"{layer}.shared_mlp", c.width, hidden)
    return branch_weights(c, hidden, path, layer, names, sources=sources)


def _experts(c: MoeConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
    names = {
        "router": "block_sparse_moe.router.layer",
        "gate_up_proj": "block_sparse_moe.input_linear",
        "down_proj": "block_sparse_moe.output_linear",
        "shared_expert.down_proj": "shared_mlp.output_linear",
    }
    shared = _halves(f"{layer}.shared_mlp", c.shared_width, hidden, "shared_expert.")
    return branch_weights(c, hidden, path, layer, names, sources=shared)


LAYERS = by_kind(
    {
        Mamba2Config: ("mamba", mamba2_weights),
        MlpConfig: ("", _mlp),
        MoeConfig: ("", _experts),
    }
)
# transformers has a separate module for the tensors of the experts.
MODULES = (
    (r"\.block_sparse_moe\.experts\.gate_up_proj$", ".block_sparse_moe.input_linear.weight"),
    (r"\.block_sparse_moe\.experts\.down_proj$", ".block_sparse_moe.output_linear.weight"),
    (r"\.block_sparse_moe\.experts\.weight$", ".block_sparse_moe.weight"),
    (r"\.block_sparse_moe\.router\.weight$", ".block_sparse_moe.router.layer.weight"),
)
weights = partial(decoder_weights, describe=LAYERS)
GRANITE_HYBRID = text_family(
    "granitemoehybrid", "GraniteMoeHybrid", read_config, weights, Mamba2Config, AttentionConfig, modules=MODULES
)
