"""Bamba (Mamba2 or attention by layer) and Falcon-H1 (both in parallel), each with MLPs."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.config.fields import read_decoder_config, read_heads
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import DecoderConfig
from models.decoder.parallel import ParallelConfig
from models.families.family import text_family
from models.families.mamba.mamba2_fields import HYBRID_FIELDS, mamba2_weights, read_mamba2
from models.layers.mlp import MlpConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba2 import Mamba2Config
from models.weights.layer_weights import Path, branch_weights, by_kind, decoder_weights
from models.weights.sources import Weight

BAMBA_POSITIONS, FALCON_POSITIONS = 262_144, 8192
"""`max_position_embeddings` of transformers."""
BIASES = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")


def _refuse_unimplemented(reader: ConfigReader) -> None:
    reader.fixed({"hidden_act": "silu", **dict.fromkeys(BIASES, False)})


def read_bamba(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `bamba`, with RoPE on half of each attention head."""
    reader = ConfigReader("bamba", config)
    eps = reader.number("rms_norm_eps", 1e-5)
    heads, kv_heads, head_dim = read_heads(reader, 8)
    # transformers reads another factor only in rope_parameters.
    reader.choice("partial_rotary_factor", [0.5], 0.5)
    rope = read_rope(reader, head_dim, 1e4, 0.5, BAMBA_POSITIONS)
    reader.choice("attn_rotary_emb", [rope.size], rope.size)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope)
    mixer = read_mamba2(reader, HYBRID_FIELDS, eps, reader.integer("mamba_expand", 2) * reader.integer("hidden_size"))
    _refuse_unimplemented(reader)
    reader.get("z_loss_coefficient")
    mlp = MlpConfig(reader.integer("intermediate_size"))
    count = reader.integer("num_hidden_layers")
    attending = reader.integers("attn_layer_indices")
    if any(index >= count for index in attending):
        reader.fault("attn_layer_indices", f"indices of the {count} layers")
    layers = tuple((attention if i in attending else mixer, mlp) for i in range(count))
    return read_decoder_config(reader, layers, eps, reader.flag("tie_word_embeddings", False), BAMBA_POSITIONS, rope)


def read_falcon(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `falcon_h1`.

    Input factors of a linear layer apply to its output, factors of queries and keys to the score scale.
    """
    reader = ConfigReader("falcon_h1", config)
    eps = reader.number("rms_norm_eps", 1e-5)
    factor = {
        name: reader.number(name, 1.0)
        for name in """embedding_multiplier lm_head_multiplier key_multiplier attention_in_multiplier
            attention_out_multiplier ssm_in_multiplier ssm_out_multiplier""".split()
    }
    gate, down = reader.numbers("mlp_multipliers", (1.0, 1.0))
    parts = reader.numbers("ssm_multipliers", (1.0,) * 5)
    heads, kv_heads, head_dim = read_heads(reader, 8)
    into = factor["attention_in_multiplier"]
    rope = read_rope(reader, head_dim, 1e4, None, FALCON_POSITIONS)
    attention = AttentionConfig(
        heads, kv_heads, head_dim, rope, scale=into * into * factor["key_multiplier"] * head_dim**-0.5
    )
    width = reader.integer("mamba_expand", 2) * reader.integer("hidden_size")
    if "mamba_d_ssm" in reader or reader.absent("mamba_d_ssm"):
        width = reader.integer("mamba_d_ssm", 1024)
    norm = "normed" if reader.flag("mamba_norm_before_gate", True) else "gated"
    if not reader.flag("mamba_rms_norm", False):
        norm = "none"
    multipliers = tuple(factor["ssm_in_multiplier"] * part for part in parts)
    mixer = read_mamba2(reader, HYBRID_FIELDS, eps, width, norm=norm, multipliers=multipliers)
    _refuse_unimplemented(reader)
    multipliers = factor["ssm_out_multiplier"], into * factor["attention_out_multiplier"]
    parallel = ParallelConfig((mixer, attention), multipliers)
    mlp = MlpConfig(reader.integer("intermediate_size"), gate_multiplier=gate, out_multiplier=down)
    reader.choice("mamba_use_mlp", [True], True)
    reader.get("mlp_expansion_factor")
    reader.choice("attn_layer_indices", [None], None)
    layers = ((parallel, mlp),) * reader.integer("num_hidden_layers")
    return read_decoder_config(
        reader,
        layers,
        eps,
        reader.flag("tie_word_embeddings", False),
        FALCON_POSITIONS,
        rope,
        embedding_multiplier=factor["embedding_multiplier"],
        logits_multiplier=factor["lm_head_multiplier"],
    )


def _parallel(c: ParallelConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
    parts = [LAYERS(inner, hidden, (*path, "layers", i), layer) for i, inner in enumerate(c.layers)]
    return [weight for part in parts for weight in part]


LAYERS = by_kind(
    {
        Mamba2Config: ("mamba", mamba2_weights),
        MlpConfig: ("feed_forward", branch_weights),
        ParallelConfig: ("", _parallel),
    }
)
weights = partial(
    decoder_weights,
    describe=LAYERS,
    norms=("input_layernorm", "pre_ff_layernorm"),
    final_norm="model.final_layernorm.weight",
)
BAMBA = text_family("bamba", "Bamba", read_bamba, weights, Mamba2Config, AttentionConfig)
FALCON_H1 = text_family("falcon_h1", "FalconH1", read_falcon, weights, Mamba2Config, AttentionConfig)
