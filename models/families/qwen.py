"""Decoder, config fields and tensor names common to Qwen3-Next and Qwen3.5.

Not shared with other families: nested text configs with another tensor prefix, projections of a Gated DeltaNet, a
gated shared expert, and an MTP head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.experts import read_experts
from models.config.fields import (
    paired,
    read_attending,
    read_dtype,
    read_kv_heads,
    read_placeholders,
)
from models.config.reader import ConfigReader
from models.config.rope import max_positions, read_rope
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.families.family import Family, text_family
from models.layers.moe import MoeConfig
from models.layers.rope import Rope
from models.layers.router import RouterConfig
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.weights.layer_weights import (
    LayerWeights,
    Path,
    branch_weights,
    by_kind,
    decoder_weights,
    head_weights,
    layer_weights,
    moe_weights,
)
from models.weights.sources import Weight, WeightSource, joined, split_rows

DEFAULT_POSITIONS = 32_768
HEAD = r"mtp\..*"
"""Tensor names of the MTP head."""
SKIPPED = (HEAD, r"model\.visual\..*", r"visual\..*", r"model\.mtp\..*")
PREFIXES = ("model.language_model.", "language_model.model.")
ReadConfig = Callable[[Mapping[str, Any]], DecoderConfig]
Describes = Callable[[DecoderConfig], list[Weight]]

IMPLEMENTED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
}
"""Fields of the mathematics, with the implemented value."""
PLACEHOLDER_IDS = {"image_token_id": 248_056, "video_token_id": 248_057}
"""Default ids of multimodal configs in transformers' Qwen3_5Config."""


def text_reader(family: str, config: Mapping[str, Any]) -> tuple[ConfigReader, ConfigReader]:
    """Return readers of the outer config and of `text_config`, perhaps the same."""
    outer = ConfigReader(family, config)
    return outer, outer.child("text_config") or outer


def read_moe(reader: ConfigReader, normalise: bool) -> MoeConfig:
    return MoeConfig(
        RouterConfig(*read_experts(reader, "num_experts"), normalise=normalise),
        reader.integer("moe_intermediate_size"),
        reader.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def read_delta_net(
    reader: ConfigReader,
    eps: float,
    key_heads: int | None = None,
    value_heads: int | None = None,
    size: int | None = None,
) -> GatedDeltaNetConfig:
    """Read the sizes of a Gated DeltaNet.

    Args:
        key_heads, value_heads, size: defaults of the heads, and of the size of keys and values; None: required.
    """
    key_heads = reader.integer("linear_num_key_heads", key_heads)
    value_heads = reader.integer("linear_num_value_heads", value_heads)
    if value_heads % key_heads:
        reader.fault("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    return GatedDeltaNetConfig(
        key_heads,
        value_heads,
        reader.integer("linear_key_head_dim", size),
        reader.integer("linear_value_head_dim", size),
        reader.integer("linear_conv_kernel_dim", 4, minimum=2),
        eps,
    )


def read_decoder(
    family: str, outer: ConfigReader, reader: ConfigReader, feed_forward: Sequence[BranchConfig]
) -> DecoderConfig:
    eps = reader.number("rms_norm_eps", 1e-6)
    heads = reader.integer("num_attention_heads")
    kv_heads = read_kv_heads(reader, heads)
    head_dim = reader.integer("head_dim", 256)
    rope = read_rope(reader, head_dim, 1e4, 0.25, DEFAULT_POSITIONS)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, QkNorm(eps, offset=1.0), output_gate=True)
    mixer = read_delta_net(reader, eps)
    reader.choice("output_gate_type", ["swish", "silu"], "swish")
    reader.choice("use_sliding_window", [False], False)
    types = read_attending(reader, len(feed_forward), "full_attention_interval", 4)
    layers = paired(types, {"full_attention": attention, "linear_attention": mixer}, feed_forward)
    return read_text_decoder(family, outer, reader, layers, eps, rope)


def read_text_decoder(
    family: str,
    outer: ConfigReader,
    reader: ConfigReader,
    layers: tuple[tuple[BranchConfig, ...], ...],
    eps: float,
    rope: Rope,
) -> DecoderConfig:
    """Read the fields common to all Qwen decoders, and close the readers."""
    reader.fixed(IMPLEMENTED)
    reader.ignore(("num_mtp_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mtp_layer_types"))
    # With two different values transformers follows the outer config.
    tied = (outer if "tie_word_embeddings" in outer else reader).flag("tie_word_embeddings", False)
    placeholders = read_placeholders(outer, {} if outer is reader else PLACEHOLDER_IDS)
    return DecoderConfig(
        family=family,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        max_position_embeddings=max_positions(reader.integer("max_position_embeddings", DEFAULT_POSITIONS), rope),
        layers=layers,
        eps=eps,
        norm_offset=1.0,
        tied=tied,
        placeholders=placeholders,
        eos_token_ids=(reader if "eos_token_id" in reader else outer).integers("eos_token_id"),
        dtype=read_dtype(reader, outer),
        unknown_keys=outer.close(),
    )


def split_qkv(c: GatedDeltaNetConfig, hidden: int, name: str) -> WeightSource:
    """Return queries, keys and values as three projections, as in Tinker's LoRA adapters."""
    keys = c.key_heads * c.key_size
    widths = {"q": keys, "k": keys, "v": c.value_width}
    return joined({f"{name}.in_proj_{part}.weight": (width, hidden) for part, width in widths.items()})


def gated_delta_net_weights(c: GatedDeltaNetConfig, hidden: int, path: Path, name: str) -> list[Weight]:
    """List the parameters of a mixer with an input projection for each tensor.

    LoRA adapters for SGLang and vLLM have `in_proj_qkvz` and `in_proj_ba`, with these rows concatenated (not by heads,
    as in Qwen3-Next).
    """
    inputs = {"in_proj_qkv": c.channels, "in_proj_z": c.value_width}
    adapted = split_rows(f"{name}.in_proj_qkvz.weight", inputs, hidden)
    gates = {"in_proj_b": c.value_heads, "in_proj_a": c.value_heads}
    adapted |= split_rows(f"{name}.in_proj_ba.weight", gates, hidden)
    adapted["in_proj_qkv"].append(split_qkv(c, hidden, name))
    return branch_weights(c, hidden, path, name, adapted=adapted)


EXPERTS = "mlp", partial(moe_weights, names={"shared_expert": "shared_expert"})
"""Name and parameters of an MoE layer, for `by_kind`."""


def weights(config: DecoderConfig, delta_net: LayerWeights = gated_delta_net_weights) -> list[Weight]:
    """List every parameter of the decoder; `delta_net` lists a mixer's."""
    describe = by_kind({MoeConfig: EXPERTS, GatedDeltaNetConfig: ("linear_attn", delta_net)})
    decoder = decoder_weights(config, describe)
    if config.head is None:
        return decoder
    layer = layer_weights(config, config.head, ("mtp", "layer"), "mtp.layers.0", describe)
    return [*decoder, *head_weights(config.hidden_size, "mtp"), *layer]


def read_head(config: DecoderConfig, fields: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder config with its MTP head, an attention layer of the decoder's kind.

    Head layers are numbered from 0, so the feed-forward layer is as in the first decoder layer. config.json of
    Qwen3-Next has no field about the head.

    Raises:
        ConfigError: no head, or an unsupported head.
    """
    _, reader = text_reader(config.family, fields)
    for name in ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers"):
        reader.choice(name, [1], 1)
    reader.choice("mtp_layer_types", [["full_attention"]], ["full_attention"])
    reader.choice("mtp_use_dedicated_embeddings", [False], False)
    attention = config.first(AttentionConfig)
    if attention is None:
        reader.fault("layer_types", "a layer of full attention, the kind of the head's layer")
        attention = AttentionConfig(1, 1, 1)
    reader.close()
    return replace(config, head=(attention, config.layers[0][1]))


def qwen_family(name: str, stem: str, read_config: ReadConfig, weights: Describes, **options: Any) -> Family:
    """Return a Qwen family, with an MTP variant."""
    mixers = GatedDeltaNetConfig, AttentionConfig
    family = text_family(name, stem, read_config, weights, *mixers, skipped=SKIPPED, prefixes=PREFIXES, **options)
    skipped = tuple(pattern for pattern in SKIPPED if pattern != HEAD)
    return family.with_mtp(lambda fields: read_head(read_config(fields), fields), skipped)
