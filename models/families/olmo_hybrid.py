"""OLMo Hybrid: pre-norm Gated DeltaNet with write strengths up to 2, and post-norm attention layers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.config.fields import read_decoder_config, read_heads, read_kinds
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import DecoderConfig, PostNorm
from models.families.family import text_family
from models.layers.mlp import MlpConfig
from models.layers.rope import Rope
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.weights.layer_weights import Path, branch_weights, by_kind, decoder_weights
from models.weights.sources import Weight, joined

DEFAULT_POSITIONS = 65_536
# How the model was initialised.
UNUSED = ("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")


def read_mixer(reader: ConfigReader) -> GatedDeltaNetConfig:
    """Read the sizes of the recurrent layers, by default from the attention heads."""
    heads, hidden = reader.integer("num_attention_heads"), reader.integer("hidden_size")
    key_heads = reader.integer("linear_num_key_heads", heads)
    value_heads = reader.integer("linear_num_value_heads", heads)
    if value_heads % key_heads:
        reader.fault("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    key_size = reader.integer("linear_key_head_dim", max(int(0.75 * hidden / key_heads), 1))
    return GatedDeltaNetConfig(
        key_heads,
        value_heads,
        key_size,
        reader.integer("linear_value_head_dim", 2 * key_size),
        reader.integer("linear_conv_kernel_dim", 4, minimum=2),
        1e-5,  # of the gated norm, for every rms_norm_eps
        strongest_write=2.0 if reader.flag("linear_allow_neg_eigval", True) else 1.0,
    )


def read_positions(reader: ConfigReader, head_dim: int) -> Rope | None:
    """Read RoPE, with transformers' default base 10000.

    A null base, or null settings as in published models, mean no RoPE.
    """
    names = ("rope_scaling", "rope_parameters")
    place = next((value for value in map(reader.get, names) if isinstance(value, Mapping) and value), {})
    base = place.get("rope_theta", reader.get("rope_theta"))
    null = "rope_theta" in place or not reader.absent("rope_theta")
    if base is not None or not (null or (not place and not reader.absent("rope_parameters"))):
        return read_rope(reader, head_dim, 1e4, None, DEFAULT_POSITIONS)
    for name in names:
        if (empty := reader.child(name)) is not None:
            for field in ("rope_theta", "rope_type", "type"):
                empty.get(field)
    return None


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("olmo_hybrid", config)
    layers = reader.integer("num_hidden_layers")
    eps = reader.number("rms_norm_eps", 1e-6)
    heads, kv_heads, head_dim = read_heads(reader)
    rope = read_positions(reader, head_dim)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, QkNorm(eps, all_heads=True))
    types = read_kinds(reader, "layer_types", ["linear_attention", "full_attention"], layers)
    mixer, mlp = read_mixer(reader), MlpConfig(reader.integer("intermediate_size"))
    reader.fixed({"hidden_act": "silu", "attention_bias": False})
    reader.ignore(UNUSED)
    full, linear = (PostNorm(attention), PostNorm(mlp)), (mixer, mlp)
    return read_decoder_config(
        reader,
        layers=tuple(full if kind == "full_attention" else linear for kind in types),
        eps=eps,
        tied=reader.flag("tie_word_embeddings", False),
        positions=DEFAULT_POSITIONS,
        rope=rope,
    )


def _mixer(c: GatedDeltaNetConfig, hidden: int, path: Path, name: str) -> list[Weight]:
    widths, taps = (c.key_width, c.key_width, c.value_width), (1, c.kernel)
    # transformers saves the convolution as three equal tensors, independent of the widths of q, k and v: only the order
    # of rows is right.
    third = -(-c.channels // 3)
    convs = [
        joined({f"{name}.{part}_conv1d.weight": (size, *taps) for part, size in zip("qkv", sizes, strict=True)})
        for sizes in dict.fromkeys((widths, (third, third, c.channels - 2 * third)))
    ]
    projections = {f"{name}.{part}_proj.weight": (size, hidden) for part, size in zip("qkv", widths, strict=True)}
    names = {"in_proj_z": "g_proj", "in_proj_b": "b_proj", "in_proj_a": "a_proj", "out_proj": "o_proj"}
    sources = {"in_proj_qkv": [joined(projections)], "conv1d": convs}
    return branch_weights(c, hidden, path, name, names | {"norm": "o_norm"}, sources=sources)


# Norm of each branch, by kind of layer; the second names are from checkpoints saved by transformers.
ATTENDING = (("post_attention_layernorm", "feedforward_layer_norm"), ("post_feedforward_layernorm",))
LINEAR = (("input_layernorm", "attention_layer_norm"), ("post_attention_layernorm", "feedforward_layer_norm"))


weights = partial(
    decoder_weights,
    describe=by_kind({GatedDeltaNetConfig: ("linear_attn", _mixer)}),
    norms=LINEAR,
    post_norms=ATTENDING,
)
OLMO_HYBRID = text_family("olmo_hybrid", "OlmoHybrid", read_config, weights, GatedDeltaNetConfig, AttentionConfig)
