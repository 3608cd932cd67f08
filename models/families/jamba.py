"""Jamba: Mamba (S6) layers with inner norms, attention layers without positions, MLP or MoE."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.config.experts import read_experts
from models.config.fields import read_decoder_config, read_heads
from models.config.reader import ConfigReader
from models.decoder.decoder import DecoderConfig
from models.families.family import text_family
from models.families.mamba.mamba import mamba1_weights, read_rank
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.router import RouterConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba1 import Mamba1Config
from models.weights.layer_weights import branch_weights, by_kind, decoder_weights, moe_weights

DEFAULT_POSITIONS = 262_144
# Training, kernels, and outputs other than logits.
UNUSED = """output_router_logits router_aux_loss_coef attention_dropout use_mamba_kernels use_mambapy
    use_associative_scan num_logits_to_keep calc_logits_for_entire_prompt""".split()


def _periodic(reader: ConfigReader, kind: str, period: int, offset: int) -> tuple[int, int]:
    period = reader.integer(f"{kind}_layer_period", period)
    offset = reader.integer(f"{kind}_layer_offset", offset, minimum=0)
    if offset >= period:
        reader.fault(f"{kind}_layer_offset", f"a number below {kind}_layer_period ({period})")
    return period, offset


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("jamba", config)
    eps = reader.number("rms_norm_eps", 1e-6)
    mamba = Mamba1Config(
        reader.integer("mamba_expand", 2) * reader.integer("hidden_size"),
        reader.integer("mamba_d_state", 16),
        read_rank(reader, "mamba_dt_rank"),
        reader.integer("mamba_d_conv", 4, minimum=2),
        conv_bias=reader.flag("mamba_conv_bias", True),
        norms="weighted",
        eps=eps,
    )
    heads, kv_heads, head_dim = read_heads(reader, 8)
    attention = AttentionConfig(heads, kv_heads, head_dim)
    width = reader.integer("intermediate_size")
    experts, per_token = read_experts(reader, "num_experts", "num_local_experts", experts=16, per_token=2)
    mlp, moe = MlpConfig(width), MoeConfig(RouterConfig(experts, per_token), width)
    every, first = _periodic(reader, "attn", 8, 4)
    every_moe, first_moe = _periodic(reader, "expert", 2, 1)
    layers = tuple(
        (attention if i % every == first else mamba, moe if experts > 1 and i % every_moe == first_moe else mlp)
        for i in range(reader.integer("num_hidden_layers"))
    )
    reader.fixed(
        {"hidden_act": "silu", "mamba_proj_bias": False, "sliding_window": None, "mamba_inner_layernorms": True}
    )
    reader.ignore(UNUSED)
    tied = reader.flag("tie_word_embeddings", False)
    return read_decoder_config(reader, layers=layers, eps=eps, tied=tied, positions=DEFAULT_POSITIONS)


weights = partial(
    decoder_weights,
    describe=by_kind(
        {
            Mamba1Config: ("mamba", mamba1_weights),
            MlpConfig: ("feed_forward", branch_weights),
            MoeConfig: ("feed_forward", partial(moe_weights, names={"router": "router"})),
        }
    ),
    norms=("input_layernorm", "pre_ff_layernorm"),
    final_norm="model.final_layernorm.weight",
)
JAMBA = text_family("jamba", "Jamba", read_config, weights, Mamba1Config, AttentionConfig)
