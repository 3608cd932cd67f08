"""What Qwen3-Next and Qwen3.5 share: the same decoder, config fields and tensor names."""

from collections.abc import Mapping, Sequence
from typing import Any

from models.attention import AttentionConfig, QkNorm
from models.config import ConfigReader
from models.decoder import BranchConfig, DecoderConfig
from models.decoder_fields import read_dtype
from models.gated_delta_net import GatedDeltaNetConfig
from models.layer_weights import attention_weights, mlp_weights, moe_weights
from models.mlp import MlpConfig
from models.moe import MoeConfig
from models.rope import read_rope
from models.router import RouterConfig
from models.weights import Weight, tensor

SKIPPED = (r"mtp\..*", r"model\.visual\..*", r"visual\..*", r"model\.mtp\..*")
PREFIXES = ("model.language_model.", "language_model.model.")


def text_reader(family: str, config: Mapping[str, Any]) -> tuple[ConfigReader, ConfigReader]:
    """The outer config and its text part, which are one where nothing is nested."""
    outer = ConfigReader(family, config)
    return outer, outer.child("text_config") or outer


def read_layer_types(reader: ConfigReader, layers: int) -> list[str]:
    """`layer_types`, or every `full_attention_interval`-th layer attention where it is absent."""
    interval = reader.integer("full_attention_interval", 4)
    types = reader.get("layer_types")
    if types is None:
        return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]
    known = ("linear_attention", "full_attention")
    if not isinstance(types, list) or len(types) != layers or any(kind not in known for kind in types):
        reader.fault("layer_types", f"a list of {layers} items, each 'linear_attention' or 'full_attention'")
        return ["linear_attention"] * layers
    return types


def read_moe(reader: ConfigReader, normalise: bool) -> MoeConfig:
    """Mixture-of-experts fields."""
    experts = reader.integer("num_experts")
    per_token = reader.integer("num_experts_per_tok")
    if per_token > experts:
        reader.fault("num_experts_per_tok", f"at most num_experts ({experts})")
    return MoeConfig(
        RouterConfig(experts, min(per_token, experts), normalise=normalise),
        reader.integer("moe_intermediate_size"),
        reader.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def read_decoder(
    family: str,
    outer: ConfigReader,
    reader: ConfigReader,
    feed_forward: Sequence[BranchConfig],
) -> DecoderConfig:
    """The fields that all members of the family have.

    Args:
        family: its name.
        outer, reader: config.json and its text part.
        feed_forward: the feed-forward layer of each decoder layer.
    """
    eps = reader.number("rms_norm_eps", 1e-6)
    hidden = reader.integer("hidden_size")
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        reader.fault("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim = reader.integer("head_dim", 256)
    rope = read_rope(reader, head_dim, 1e4, 0.25)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, QkNorm(eps, offset=1.0), output_gate=True)
    key_heads, value_heads = reader.integer("linear_num_key_heads"), reader.integer("linear_num_value_heads")
    if value_heads % key_heads:
        reader.fault("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    mixer = GatedDeltaNetConfig(
        key_heads,
        value_heads,
        reader.integer("linear_key_head_dim"),
        reader.integer("linear_value_head_dim"),
        reader.integer("linear_conv_kernel_dim", 4, minimum=2),
        eps,
    )
    reader.choice("hidden_act", ["silu"], "silu")
    reader.choice("attention_bias", [False], False)
    reader.choice("attn_output_gate", [True], True)
    reader.choice("output_gate_type", ["swish", "silu"], "swish")
    reader.choice("mamba_ssm_dtype", ["float32"], "float32")
    reader.choice("use_sliding_window", [False], False)
    for name in ("num_mtp_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mtp_layer_types"):
        reader.get(name)
    types = read_layer_types(reader, len(feed_forward))
    layers = tuple(
        (attention if kind == "full_attention" else mixer, forward)
        for kind, forward in zip(types, feed_forward, strict=True)
    )
    # Where both are there and differ, transformers follows the outer one.
    tied = (outer if "tie_word_embeddings" in outer else reader).flag("tie_word_embeddings", False)
    return DecoderConfig(
        family=family,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        max_position_embeddings=reader.integer("max_position_embeddings", 32768),
        layers=layers,
        eps=eps,
        norm_offset=1.0,
        tied=tied,
        eos_token_ids=(reader if "eos_token_id" in reader else outer).integers("eos_token_id"),
        dtype=read_dtype(reader, outer),
        unknown_keys=outer.close(),
    )


def _mixer(config: GatedDeltaNetConfig, hidden: int, at: tuple, name: str, fused: bool) -> list[Weight]:
    c = config
    shapes = {"conv1d": (c.channels, 1, c.kernel), "out_proj": (hidden, c.value_width)}
    if not fused:
        shapes["in_proj_qkv"] = (c.channels, hidden)
        shapes["in_proj_z"] = (c.value_width, hidden)
        shapes["in_proj_b"] = shapes["in_proj_a"] = (c.value_heads, hidden)
    return [
        *(tensor((*at, part), f"{name}.{part}.weight", shape) for part, shape in shapes.items()),
        tensor((*at, "A_log"), f"{name}.A_log", (c.value_heads,), float32=True),
        tensor((*at, "dt_bias"), f"{name}.dt_bias", (c.value_heads,), float32=True),
        tensor((*at, "norm"), f"{name}.norm.weight", (c.value_size,), float32=True),
    ]


def decoder_weights(config: DecoderConfig, fused_projections: bool = False) -> list[Weight]:
    """Every parameter of the decoder with the names of the Hugging Face checkpoints.

    Args:
        config: the decoder.
        fused_projections: leave out the four input projections of the mixers, which the caller describes.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    weights = [
        tensor(("embed_tokens",), "model.embed_tokens.weight", (vocab, hidden)),
        tensor(("norm", "weight"), "model.norm.weight", (hidden,), float32=True),
    ]
    if not config.tied:
        weights.append(tensor(("lm_head",), "lm_head.weight", (vocab, hidden)))
    for i, (mixer, forward) in enumerate(config.layers):
        layer, at = f"model.layers.{i}", ("layers", i, "branches")
        for j, norm in enumerate(("input_layernorm", "post_attention_layernorm")):
            weights.append(tensor((*at, j, "norm", "weight"), f"{layer}.{norm}.weight", (hidden,), float32=True))
        mixer_at, forward_at = (*at, 0, "inner"), (*at, 1, "inner")
        if isinstance(mixer, AttentionConfig):
            weights += attention_weights(mixer, hidden, mixer_at, f"{layer}.self_attn")
        elif isinstance(mixer, GatedDeltaNetConfig):
            weights += _mixer(mixer, hidden, mixer_at, f"{layer}.linear_attn", fused_projections)
        if isinstance(forward, MoeConfig):
            weights += moe_weights(forward, hidden, forward_at, f"{layer}.mlp", shared="shared_expert")
        elif isinstance(forward, MlpConfig):
            weights += mlp_weights(forward.width, hidden, forward_at, f"{layer}.mlp")
    return weights
