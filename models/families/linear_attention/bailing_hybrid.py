"""Ling (`bailing_hybrid`): MLA with RoPE, MoE, and KDA or lightning attention.

KDA, with bounded decay, is in 3.0, lightning attention in 2.5 and 2.6.

Not shared with other families: layer groups, an MTP head after the last layer, and two linear mixers.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.fields import paired, read_attending, read_decoder_config
from models.config.reader import ConfigReader
from models.config.rope import read_rope, yarn_score_factor
from models.decoder.decoder import DecoderConfig
from models.families.architectures import named_classes
from models.families.family import text_family
from models.families.linear_attention.kimi import (
    delta_attention_weights,
    latent_attention_weights,
    read_feed_forward,
    read_latent_attention,
)
from models.families.linear_attention.lightning import lightning_weights, slopes
from models.layers.activations import SwigluLimit
from models.layers.moe import MoeConfig
from models.layers.rope import Rope
from models.mixers.kimi_delta_attention import KimiDeltaAttentionConfig
from models.mixers.latent_attention import LatentAttentionConfig
from models.mixers.lightning_attention import LightningAttentionConfig
from models.weights.layer_weights import (
    HEAD_NAMES,
    Path,
    by_kind,
    decoder_weights,
    head_weights,
    layer_weights,
    moe_weights,
)
from models.weights.sources import Weight, WeightSource

DEFAULT_POSITIONS = 262_144
# Unused fields; `read_head` reads MTP heads.
UNUSED = """qk_head_dim num_nextn_predict_layers num_mtp_layers mtp_loss_scaling_factor mtp_use_kda embedding_dropout
    output_dropout seq_aux max_window_layers""".split()

# Fields of published files for the mathematics that transformers does not read, with the implemented value.
IMPLEMENTED: dict[str, Any] = {
    "num_kv_heads_for_linear_attn": 0,
    "use_mla_nope": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "moe_router_enable_expert_bias": True,
    "moe_router_enable_routed_scaling": True,
    "moe_router_enable_shared_expert": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "router_dtype": "fp32",
    "scale_router_input": False,
    "use_nGPT": False,
    "up_proj_norm": False,
    "value_norm": False,
}
IMPLEMENTED_KDA: dict[str, Any] = {
    "no_kda_lora": True,
    "use_kda_lora": False,
    "linear_silu": True,
    "use_qk_norm": True,
    "group_norm_size": 1,
    "gated_attention_proj_granularity_type": "head_wise",
}

LIMITS = {"limit": "expert_swiglu_limit_list", "shared_limit": "share_expert_swiglu_limit_list"}
"""Limits of `MoeConfig` by layer, which vLLM and SGLang apply and transformers ignores."""
MTP_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers")
"""Numbers of MTP layers; the first that is present counts."""
# transformers reads both names and saves the first.
OUTPUTS = ("dense", "o_proj")
LIGHTNING_STEM = "BailingMoeV2_5"
LIGHTNING = {
    "q_norm": "query_layernorm",
    "k_norm": "key_layernorm",
    "gate": "g_proj",
    "norm": "g_norm",
    "out_proj": "dense",
}
"""Tensors of lightning attention by parameter."""


def _read_kda(reader: ConfigReader, size: int, eps: float) -> KimiDeltaAttentionConfig:
    """Read the linear mixer of Ling 3.0."""
    bounded = reader.flag("kda_safe_gate", True)
    lower_bound = reader.number("kda_lower_bound", -5.0, minimum=-float("inf"))
    if lower_bound >= 0:
        reader.fault("kda_lower_bound", "a negative number, the lower bound of the log-decay")
    reader.fixed(IMPLEMENTED_KDA)
    # transformers prefers the first, and saves both, equal or not.
    kernel = "linear_conv_kernel_dim" if "linear_conv_kernel_dim" in reader else "short_conv_kernel_size"
    return KimiDeltaAttentionConfig(
        reader.integer("linear_num_heads" if "linear_num_heads" in reader else "num_attention_heads"),
        size,
        reader.integer(kernel, 4, minimum=2),
        eps,
        bottleneck=None,
        lower_bound=lower_bound if bounded else None,
    )


def _read_lightning(reader: ConfigReader, size: int, eps: float, rope: Rope) -> LightningAttentionConfig:
    """Read the linear mixer of Ling 2.5, with keys and values in all heads.

    `num_key_value_heads` has no effect.
    """
    heads, groups = reader.integer("num_attention_heads"), reader.integer("group_norm_size", 4)
    if heads % groups:
        reader.fault("group_norm_size", f"a divisor of num_attention_heads ({heads})")
        groups = 1
    reader.choice("linear_silu", [False], False)
    norms = eps if reader.flag("use_qk_norm", True) else None
    return LightningAttentionConfig(heads, size, groups, eps, qk_eps=norms, rope=rope, scale=size**-0.5)


def _read_limits(reader: ConfigReader, layers: int) -> list[dict[str, SwigluLimit | None]]:
    """Read the limits of each layer's experts, then of the head's; 0 is no limit."""
    limits: list[dict[str, SwigluLimit | None]] = [{} for _ in range(layers + 1)]
    for part, name in LIMITS.items():
        value = reader.get(name)
        with_head = isinstance(value, list) and len(value) > layers
        sizes = reader.numbers(name, (0.0,) * (layers + with_head))
        if min(sizes) < 0:
            reader.fault(name, "numbers that are not negative; 0 is no limit")
        for index, size in enumerate((*sizes, 0.0)[: layers + 1]):
            limits[index][part] = SwigluLimit(size, of_silu=True) if size else None
    return limits


def _is_lightning(config: Mapping[str, Any]) -> bool:
    """Recognise Ling 2.5 by a class of the checkpoint; the `model_type` is the same."""
    return any(str(name).startswith(LIGHTNING_STEM) for _, name in named_classes(config))


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json, as published or as transformers saves it."""
    lightning = _is_lightning(config)
    # Ling 2.5 has latent attention in all heads.
    ignored = {"num_key_value_heads": config.get("num_attention_heads")} if lightning else {}
    reader = ConfigReader("bailing_hybrid", {**config, **ignored})
    layers = reader.integer("num_hidden_layers")
    eps = reader.number("rms_norm_eps", 1e-6)
    size = reader.integer("linear_head_dim" if "linear_head_dim" in reader else "head_dim")
    reader.choice("rope_interleave", [True], True)
    shared = reader.integer("qk_rope_head_dim")
    # A fraction is relative to the whole head; the rotated entries must be the shared entries.
    fraction = reader.number("partial_rotary_factor", 0.5 if lightning else 1.0)
    head_size = shared if fraction == 1.0 and not lightning else size
    rope = read_rope(reader, head_size, 6e5 if lightning else 6e6, fraction, DEFAULT_POSITIONS)
    if rope.size != shared:
        reader.fault("partial_rotary_factor", f"qk_rope_head_dim ({shared}) of the {size} values of a head, or 1")
    mixer = _read_lightning(reader, size, eps, rope) if lightning else _read_kda(reader, size, eps)
    attention = replace(
        read_latent_attention(reader, rope, head_gate=not lightning),
        score_factor=yarn_score_factor(reader.get("rope_scaling") or reader.get("rope_parameters")),
    )
    group = 5 if lightning else 6
    types = read_attending(reader, layers, "layer_group_size", group)
    dense, scale = (1, 1.0) if lightning else (2, 2.5)
    feed_forward = read_feed_forward(reader, layers, dense, groups=(8, 4), scale=scale)
    if layers % reader.integer("layer_group_size", group) and "layer_types" not in reader:
        reader.fault("layer_group_size", f"a divisor of num_hidden_layers ({layers}) where there are no layer_types")
    reader.choice("rotary_dim", [shared], shared)
    for moe in {forward for forward in feed_forward if isinstance(forward, MoeConfig)}:
        reader.choice("moe_shared_expert_intermediate_size", [moe.shared_width], moe.shared_width)
    limits = _read_limits(reader, layers)
    for index, forward in enumerate(feed_forward):
        if isinstance(forward, MoeConfig):
            feed_forward[index], limits[index] = replace(forward, **limits[index]), {}
    for part, name in LIMITS.items():
        values = [(index, limit.size) for index, layer in enumerate(limits[:layers]) if (limit := layer.get(part))]
        if values:
            unused = ", ".join(f"{size} in layer {index}" for index, size in values)
            reader.fault(name, f"0 in layers without experts, not {unused}")
    reader.choice("hidden_act", ["silu"], "silu")
    reader.fixed(IMPLEMENTED)
    reader.ignore(("head_dim", "short_conv_kernel_size", "pretraining_tp", *UNUSED))
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
        ConfigError: no head, or an unsupported head.
    """
    config = read_config(fields)
    reader = ConfigReader("bailing_hybrid", fields)
    reader.choice(next((name for name in MTP_COUNTS if name in reader), MTP_COUNTS[0]), [1], 1)
    reader.choice("mtp_use_kda", [False], False)
    limits = _read_limits(reader, config.num_layers)
    attention, experts = config.first(LatentAttentionConfig), config.first(MoeConfig)
    if attention is None or experts is None:
        reader.fault("num_hidden_layers", "layers of latent attention and of experts, the kinds of the head's layer")
    reader.close()
    assert attention is not None and experts is not None
    return replace(config, head=(attention, replace(experts, **limits[-1])))


def _lightning(layers: int, c: LightningAttentionConfig, hidden: int, path: Path, name: str) -> list[Weight]:
    inputs = WeightSource({f"{name}.query_key_value.weight": (3 * c.width, hidden)})
    # vLLM, SGLang and mlx-lm count layers from 0, the Python code of the checkpoints from -1.
    rates = slopes(c.heads) * (1 - int(path[1]) / max(layers - 1, 1) + 1e-5)
    return lightning_weights(c, hidden, path, name, names=LIGHTNING, inputs=inputs, rates=rates)


def weights(config: DecoderConfig) -> list[Weight]:
    describe = by_kind(
        {
            LightningAttentionConfig: ("attention", partial(_lightning, config.num_layers)),
            LatentAttentionConfig: (
                "attention",
                partial(latent_attention_weights, outputs=OUTPUTS, interleaved=True),
            ),
            KimiDeltaAttentionConfig: (
                "attention",
                partial(delta_attention_weights, outputs=OUTPUTS, float32_conv=True),
            ),
            MoeConfig: ("mlp", partial(moe_weights, names={"router.bias": "gate.expert_bias"}, float32_router=True)),
        }
    )
    decoder = decoder_weights(config, describe, embedding="model.word_embeddings.weight")
    if config.head is None:
        return decoder
    layer = f"model.layers.{config.num_layers}"
    head = head_weights(config.hidden_size, layer, HEAD_NAMES)
    return [*decoder, *head, *layer_weights(config, config.head, ("mtp", "layer"), layer, describe)]


# Decay rates of lightning attention follow from the number of the layer.
SKIPPED = (r"model\.mtp_layers\..*", r"mtp\..*", r"model\.layers\.\d+\.attention\.slope")
MODULES = (
    (r"^model\.embed_tokens\.", "model.word_embeddings."),
    (r"\.self_attn\.(forget_gate\.)?", ".attention."),
    (r"\.e_score_correction_bias$", ".expert_bias"),
)
BAILING_HYBRID = text_family(
    "bailing_hybrid",
    ("BailingMoeV3", "BailingHybrid", LIGHTNING_STEM),
    read_config,
    weights,
    KimiDeltaAttentionConfig,
    LightningAttentionConfig,
    LatentAttentionConfig,
    skipped=SKIPPED,
    modules=MODULES,
    mtp_counts=MTP_COUNTS,
).with_mtp(read_head, SKIPPED)
