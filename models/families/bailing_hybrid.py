"""Ling 3.0 (`bailing_hybrid`): KDA with bounded decay, MLA with RoPE and output gate, MoE.

Not shared with other families: the layer pattern by groups, and an MTP head whose layer follows the last one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config.fields import paired, read_attending, read_decoder_config
from models.config.reader import ConfigReader
from models.config.rope import read_rope, yarn_score_factor
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.families.architectures import text_classes
from models.families.family import Family
from models.families.kimi import (
    delta_attention_weights,
    latent_attention_weights,
    read_feed_forward,
    read_latent_attention,
)
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.mixers.kimi_delta_attention import KimiDeltaAttentionConfig
from models.mixers.latent_attention import LatentAttentionConfig
from models.mixers.samples import KIMI_DELTA_ATTENTION, LATENT_ATTENTION
from models.weights.layer_weights import Path, decoder_weights, head_weights, layer_weights, mlp_weights, moe_weights
from models.weights.sources import Weight

DEFAULT_POSITIONS = 262_144
"""`max_position_embeddings` of transformers."""
# Unused fields: a redundant head size, MTP heads (`read_head`), and settings of training.
UNUSED = """qk_head_dim num_nextn_predict_layers num_mtp_layers mtp_loss_scaling_factor mtp_use_kda embedding_dropout
    output_dropout seq_aux max_window_layers""".split()

# Fields of published files for the mathematics that transformers does not read, with the implemented value.
IMPLEMENTED: dict[str, Any] = {
    "no_kda_lora": True,
    "use_kda_lora": False,
    "linear_silu": True,
    "use_qk_norm": True,
    "group_norm_size": 1,
    "num_kv_heads_for_linear_attn": 0,
    "use_mla_nope": False,
    "gated_attention_proj_granularity_type": "head_wise",
    "use_bias": False,
    "use_qkv_bias": False,
    "moe_router_enable_expert_bias": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "router_dtype": "fp32",
    "scale_router_input": False,
    "expert_swiglu_limit_list": None,
    "share_expert_swiglu_limit_list": None,
    "use_nGPT": False,
    "up_proj_norm": False,
    "value_norm": False,
}

MTP_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers")
"""Numbers of MTP layers; the first that is present counts."""
# transformers reads both names and saves the first.
OUTPUTS = ("dense", "o_proj")


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `bailing_hybrid`, as published or as transformers saves it."""
    reader = ConfigReader("bailing_hybrid", config)
    layers = reader.integer("num_hidden_layers")
    eps = reader.number("rms_norm_eps", 1e-6)
    bounded = reader.flag("kda_safe_gate", True)
    lower_bound = reader.number("kda_lower_bound", -5.0, minimum=-float("inf"))
    if lower_bound >= 0:
        reader.fault("kda_lower_bound", "a negative number, the lower bound of the log-decay")
    size = reader.integer("linear_head_dim" if "linear_head_dim" in reader else "head_dim")
    mixer = KimiDeltaAttentionConfig(
        reader.integer("linear_num_heads" if "linear_num_heads" in reader else "num_attention_heads"),
        size,
        reader.integer("short_conv_kernel_size", 4, minimum=2),
        eps,
        bottleneck=None,
        lower_bound=lower_bound if bounded else None,
    )
    reader.choice("rope_interleave", [True], True)
    shared = reader.integer("qk_rope_head_dim")
    # A fraction is relative to the whole head; the rotated entries must be the shared entries.
    fraction = reader.number("partial_rotary_factor", 1.0)
    rope = read_rope(reader, shared if fraction == 1.0 else size, 6e6, 1.0, DEFAULT_POSITIONS)
    if rope.size != shared:
        reader.fault("partial_rotary_factor", f"qk_rope_head_dim ({shared}) of the {size} values of a head, or 1")
    attention = replace(
        read_latent_attention(reader, rope, head_gate=True),
        score_factor=yarn_score_factor(reader.get("rope_scaling") or reader.get("rope_parameters")),
    )
    types = read_attending(reader, layers, "layer_group_size", 6)
    feed_forward = read_feed_forward(reader, layers, dense=2, groups=(8, 4), scale=2.5)
    if layers % reader.integer("layer_group_size", 6) and "layer_types" not in reader:
        reader.fault("layer_group_size", f"a divisor of num_hidden_layers ({layers}) where there are no layer_types")
    reader.choice("rotary_dim", [shared], shared)
    for moe in {forward for forward in feed_forward if isinstance(forward, MoeConfig)}:
        reader.choice("moe_shared_expert_intermediate_size", [moe.shared_width], moe.shared_width)
    reader.choice("hidden_act", ["silu"], "silu")
    for name, value in IMPLEMENTED.items():
        reader.choice(name, [value], value)
    for name in ("head_dim", "linear_conv_kernel_dim", "pretraining_tp", *UNUSED):
        reader.get(name)
    return read_decoder_config(
        reader,
        layers=paired(types, {"full_attention": attention, "linear_attention": mixer}, feed_forward),
        eps=eps,
        tied=reader.choice("tie_word_embeddings", [False], False),
        positions=DEFAULT_POSITIONS,
        rope=rope,
    )


def read_head(fields: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json with the MTP head, a layer of latent attention and experts.

    Raises:
        ConfigError: the head is absent or not implemented.
    """
    config = read_config(fields)
    reader = ConfigReader("bailing_hybrid", fields)
    reader.choice(next((name for name in MTP_COUNTS if name in reader), MTP_COUNTS[0]), [1], 1)
    reader.choice("mtp_use_kda", [False], False)
    branches = [branch for layer in config.layers for branch in layer]
    attention = next((branch for branch in branches if isinstance(branch, LatentAttentionConfig)), None)
    experts = next((branch for branch in branches if isinstance(branch, MoeConfig)), None)
    if attention is None or experts is None:
        reader.fault("num_hidden_layers", "layers of latent attention and of experts, the kinds of the head's layer")
    reader.close()
    assert attention is not None and experts is not None
    return replace(config, head=(attention, experts))


def _describe(c: BranchConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
    if isinstance(c, LatentAttentionConfig):
        return latent_attention_weights(c, hidden, path, f"{layer}.attention", OUTPUTS, interleaved=True)
    if isinstance(c, KimiDeltaAttentionConfig):
        return delta_attention_weights(c, hidden, path, f"{layer}.attention", (c.heads,), OUTPUTS)
    if isinstance(c, MoeConfig):
        return moe_weights(c, hidden, path, f"{layer}.mlp", bias="gate.expert_bias")
    assert isinstance(c, MlpConfig)
    return mlp_weights(c.width, hidden, path, f"{layer}.mlp")


def weights(config: DecoderConfig) -> list[Weight]:
    decoder = decoder_weights(config, _describe, embedding="model.word_embeddings.weight")
    if config.head is None:
        return decoder
    layer = f"model.layers.{config.num_layers}"
    names = {
        "fc": "eh_proj",
        "pre_fc_norm_embedding": "enorm",
        "pre_fc_norm_hidden": "hnorm",
        "norm": "final_layernorm",
    }
    head = head_weights(config.hidden_size, {name: f"{layer}.{stored}" for name, stored in names.items()})
    return [*decoder, *head, *layer_weights(config.head, config.hidden_size, ("mtp", "layer"), layer, _describe)]


SKIPPED = (r"model\.mtp_layers\..*", r"mtp\..*")
MODULES = (
    (r"^model\.embed_tokens\.", "model.word_embeddings."),
    (r"\.self_attn\.(forget_gate\.)?", ".attention."),
    (r"\.e_score_correction_bias$", ".expert_bias"),
)
CLASSES = text_classes("BailingMoeV3", "BailingHybrid")
"""Ling 2.5 and 2.6 (BailingMoeV2_5ForCausalLM) have the same model_type, with lightning attention."""
BAILING_HYBRID = Family(
    "bailing_hybrid",
    ("bailing_hybrid",),
    read_config,
    weights,
    SKIPPED,
    (),
    Family(
        "bailing_hybrid", ("bailing_hybrid",), read_head, weights, SKIPPED, (), modules=MODULES, architectures=CLASSES
    ),
    modules=MODULES,
    architectures=CLASSES,
    mixers=(KIMI_DELTA_ATTENTION, LATENT_ATTENTION),
    mtp_counts=MTP_COUNTS,
)
