"""LFM2 and LFM2-MoE: gated short convolutions, some attention layers (GQA), MLP or sigmoid-routed MoE."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.experts import read_experts
from models.config.fields import paired, read_decoder_config, read_heads, read_kinds
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.families.family import text_family
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.router import RouterConfig
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_short_conv import GatedShortConvConfig
from models.weights.layer_weights import NUMBERED, branch_weights, by_kind, decoder_weights, moe_weights

DEFAULT_POSITIONS = 128_000
ATTENTION = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
# Fields of published configs about initialisation, and duplicates of other fields.
UNUSED = """block_dim block_mlp_init_scale block_out_init_scale block_use_xavier_init block_norm_eps conv_dim
    conv_dim_out conv_use_xavier_init num_heads theta full_attn_idxs""".split()


def read_layer_types(reader: ConfigReader, layers: int) -> list[str]:
    """Read `layer_types`, or the attention layers of `full_attn_idxs`."""
    if "layer_types" in reader:
        return read_kinds(reader, "layer_types", ["conv", "full_attention"], layers)
    indices = reader.integers("full_attn_idxs") if "full_attn_idxs" in reader else tuple(range(layers))
    if any(i >= layers for i in indices):
        reader.fault("full_attn_idxs", f"indices of the {layers} layers")
    return ["full_attention" if i in indices else "conv" for i in range(layers)]


def read_mlp(reader: ConfigReader) -> MlpConfig:
    """Read the MLP of `lfm2`: two thirds of the width, rounded up to whole blocks."""
    width = reader.integer("block_ff_dim" if "block_ff_dim" in reader else "intermediate_size")
    multiplier = reader.number("block_ffn_dim_multiplier", 1.0)
    block = reader.integer("block_multiple_of", 256)
    if reader.flag("block_auto_adjust_ff_dim", True):
        width = -(-int(multiplier * int(2 * width / 3)) // block) * block
    return MlpConfig(width)


def read_moe(reader: ConfigReader) -> MoeConfig:
    router = RouterConfig(
        *read_experts(reader, "num_experts", experts=32, per_token=4),
        scores="sigmoid",
        bias=reader.flag("use_expert_bias", True),
        normalise=reader.flag("norm_topk_prob", True),
        epsilon=1e-6,
        scale=reader.number("routed_scaling_factor", 1.0),
    )
    return MoeConfig(router, reader.integer("moe_intermediate_size"))


def _read_config(family: str, config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(family, config)
    layers = reader.integer("num_hidden_layers")
    eps = reader.number("norm_eps", 1e-5)
    heads, kv_heads, head_dim = read_heads(reader, 8)
    rope = read_rope(reader, head_dim, 1e6, None, DEFAULT_POSITIONS)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, QkNorm(eps))
    conv = GatedShortConvConfig(reader.integer("conv_L_cache", 3, minimum=2), reader.integer("hidden_size"))
    if family == "lfm2_moe" and "layer_types" not in reader:
        reader.fault("layer_types", f"a list of {layers} items")
    types = read_layer_types(reader, layers)
    if family == "lfm2":
        feed_forward: list[BranchConfig] = [read_mlp(reader)] * layers
    else:
        dense = reader.integer("num_dense_layers", 2, minimum=0)
        mlp, moe = MlpConfig(reader.integer("intermediate_size")), read_moe(reader)
        feed_forward = [mlp if i < dense else moe for i in range(layers)]
    reader.fixed({"conv_bias": False, "block_use_swiglu": True, "use_pos_enc": True})
    reader.ignore(UNUSED)
    return read_decoder_config(
        reader,
        layers=paired(types, {"conv": conv, "full_attention": attention}, feed_forward),
        eps=eps,
        positions=DEFAULT_POSITIONS,
        rope=rope,
        tied=reader.flag("tie_embedding" if "tie_embedding" in reader else "tie_word_embeddings", True),
    )


weights = partial(
    decoder_weights,
    describe=by_kind(
        {
            AttentionConfig: ("self_attn", partial(branch_weights, names=ATTENTION)),
            MlpConfig: ("feed_forward", partial(branch_weights, names=NUMBERED)),
            MoeConfig: ("feed_forward", partial(moe_weights, names={**NUMBERED, "router.bias": "expert_bias"})),
            GatedShortConvConfig: ("conv", branch_weights),
        }
    ),
    norms=("operator_norm", "ffn_norm"),
    final_norm="model.embedding_norm.weight",
)


LFM2, LFM2_MOE = (
    text_family(
        name, stem, lambda config, name=name: _read_config(name, config), weights, GatedShortConvConfig, AttentionConfig
    )
    for name, stem in (("lfm2", "Lfm2"), ("lfm2_moe", "Lfm2Moe"))
)
# Older files.
LFM2 = replace(LFM2, architectures=(*LFM2.architectures, "LFM2ForCausalLM"))
