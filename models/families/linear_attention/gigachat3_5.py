"""GigaChat3.5: Gated DeltaNet, latent attention (MLA), MoE, and norms with a learned gate.

Sources: the model files of vLLM and SGLang, and the training code of its authors for `norm_type` and `swiglu_limit`.

Not shared with other families: the fields of its norms, gates and factors, and a gate of every norm among the weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.fields import paired, read_decoder_config, read_kinds
from models.config.reader import ConfigReader
from models.config.rope import read_rope, yarn_score_factor
from models.decoder.decoder import DecoderConfig, PostNorm
from models.families.family import text_family
from models.families.linear_attention.kimi import latent_attention_weights, read_feed_forward, read_latent_attention
from models.families.qwen import read_delta_net
from models.families.qwen3_next import fused_delta_net_weights
from models.layers.activations import SwigluLimit
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.norms import NormConfig
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.mixers.latent_attention import LatentAttentionConfig
from models.weights.layer_weights import by_kind, decoder_weights, moe_weights

DEFAULT_POSITIONS = 131_072
MTP_COUNTS = ("num_nextn_predict_layers",)
GATED_NORMS = {"gated_rmsnorm_sigmoid": 0.0, "gated_rmsnorm_sigmoid_zero_centered": 1.0}
"""Norms of a delta net's outputs, with a sigmoid gate -> offset of their weights."""
# Redundant sizes, MTP layers, training and caches of other systems.
UNUSED = """head_dim qk_head_dim num_nextn_predict_layers nextn_is_sparse aux_loss_alpha optimizer_eps pretraining_tp
    seq_aux ep_size""".split()
IMPLEMENTED: dict[str, Any] = {
    "attention_type": "LlamaLatentAttention",
    "attention_distillation": False,
    "linear_attention_type": "Qwen3NextGatedDeltaNet",
    "linear_use_short_conv": True,
    "linear_use_legacy_qkvz_layout": False,
    "output_gate_type": "sigmoid",
    "mamba_ssm_dtype": "float32",
    "norm_type": "ZeroCenteredGatedNorm",
    "layernorm_type": "pre_post",
    "num_krope_heads": 1,
    "rope_interleave": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "use_shared_expert_sigmoid": False,
    "hidden_act": "silu",
    "apply_qk_norm": False,
    "embed_scale": 1.0,
    "use_embed_ln": False,
    "lm_head_logit_softcapping": None,
}
"""Fields of the mathematics, with the implemented value."""


def _read_types(reader: ConfigReader, layers: int) -> list[str]:
    """Read each layer's kind: numbers from 0 of attention layers, or the names of all."""
    attending = reader.integers("full_attention_layers")
    kinds = ["full_attention" if i in attending else "linear_attention" for i in range(layers)]
    if any(layer >= layers for layer in attending):
        reader.fault("full_attention_layers", f"numbers of layers, from 0 to {layers - 1}")
    if "layer_types" not in reader:
        return kinds
    types = read_kinds(reader, "layer_types", ["linear_attention", "full_attention"], layers)
    if "full_attention_layers" in reader and types != kinds:
        reader.fault("layer_types", "attention in the layers of full_attention_layers alone")
    return types


def _read_delta_net(reader: ConfigReader, eps: float) -> GatedDeltaNetConfig:
    sizes = read_delta_net(reader, reader.number("linear_attn_o_norm_eps", eps), 32, 64, 128)
    gating = reader.choice("linear_gating_type", list(GATED_NORMS), "gated_rmsnorm_sigmoid_zero_centered")
    factor = reader.number("linear_sigmoid_gate_scale", 2.0)
    return replace(sizes, gate="sigmoid", gate_factor=factor, norm_offset=GATED_NORMS[gating])


def _read_attention(reader: ConfigReader, norm: NormConfig) -> LatentAttentionConfig:
    rope = read_rope(reader, reader.integer("qk_rope_head_dim"), 1e5, None, DEFAULT_POSITIONS)
    c = read_latent_attention(reader, rope, head_gate=False)
    scaling = reader.get("rope_scaling") or reader.get("rope_parameters")
    query_factor = row_factor = 1.0
    if reader.flag("use_mla_scaling_factor", True):
        # A factor on queries is one on scores.
        hidden = reader.integer("hidden_size")
        query_factor, row_factor = (hidden / (c.query_rank or hidden)) ** 0.5, (hidden / c.rank) ** 0.5
    return replace(
        c,
        norm=norm,
        score_factor=yarn_score_factor(scaling) * query_factor,
        row_factor=row_factor,
        output_gate=reader.flag("gated_attention", True),
    )


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    heads = config.get("num_attention_heads")
    missing = {"num_key_value_heads": heads, "q_lora_rank": 1536}
    reader = ConfigReader("gigachat3_5", {**missing, **config})
    layers, eps = reader.integer("num_hidden_layers"), reader.number("rms_norm_eps", 1e-6)
    norm = NormConfig(eps, 1.0, reader.number("layernorm_gating_weight", 2.0))
    mixers = {"full_attention": _read_attention(reader, norm), "linear_attention": _read_delta_net(reader, eps)}
    # 0 stands for no bound.
    limit = None if reader.get("swiglu_limit") in (None, 0) else SwigluLimit(reader.number("swiglu_limit"))
    feed_forward = [
        replace(each, limit=limit) if isinstance(each, MlpConfig) else replace(each, limit=limit, shared_limit=limit)
        for each in read_feed_forward(reader, layers, 3, (1, 1), 2.5)
    ]
    blocks = paired(_read_types(reader, layers), mixers, feed_forward)
    reader.fixed(IMPLEMENTED)
    reader.ignore(UNUSED)
    return read_decoder_config(
        reader,
        layers=tuple(tuple(PostNorm(branch, in_front=True) for branch in block) for block in blocks),
        eps=eps,
        tied=reader.flag("tie_word_embeddings", False),
        positions=DEFAULT_POSITIONS,
        rope=mixers["full_attention"].rope,
        norm_offset=norm.offset,
        norm_gate=norm.gate,
    )


weights = partial(
    decoder_weights,
    describe=by_kind(
        {
            LatentAttentionConfig: (
                "self_attn",
                partial(latent_attention_weights, outputs=("o_proj",), interleaved=True),
            ),
            GatedDeltaNetConfig: ("self_attn", fused_delta_net_weights),
            MoeConfig: ("mlp", moe_weights),
        }
    ),
    post_norms=("post_self_attn_layernorm", "post_feedforward_layernorm"),
)
GIGACHAT3_5 = text_family(
    "gigachat3_5",
    "GigaChat35",
    read_config,
    weights,
    GatedDeltaNetConfig,
    LatentAttentionConfig,
    skipped=(r".*\.rotary_emb\.inv_freq",),
    mtp_counts=MTP_COUNTS,
)
