"""Kimi-Linear: KDA and latent attention (MLA) without positions, sigmoid-routed MoE."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.config.fields import paired, read_decoder_config, read_kinds
from models.config.reader import ConfigReader
from models.decoder.decoder import DecoderConfig
from models.families.family import text_family
from models.families.linear_attention.kimi import (
    delta_attention_weights,
    latent_attention_weights,
    read_feed_forward,
    read_latent_attention,
)
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.mixers.kimi_delta_attention import KimiDeltaAttentionConfig
from models.mixers.latent_attention import LatentAttentionConfig
from models.weights.layer_weights import NUMBERED, Path, branch_weights, by_kind, decoder_weights, moe_weights
from models.weights.sources import Weight

DEFAULT_POSITIONS = 1_048_576

# Positions are not used; the sizes follow from others.
UNUSED = ("head_dim", "qk_head_dim", "rope_theta", "rope_scaling", "num_nextn_predict_layers", "pretraining_tp")


def read_layer_types(reader: ConfigReader, linear: ConfigReader | None, layers: int) -> list[str]:
    """Read `layer_types`, or the lists of `linear_attn_config` with layers from 1."""
    if "layer_types" in reader or linear is None:
        return read_kinds(reader, "layer_types", ["linear_attention", "full_attention"], layers)
    kda, full = linear.integers("kda_layers"), linear.integers("full_attn_layers")
    if sorted((*kda, *full)) != list(range(1, layers + 1)):
        linear.fault("kda_layers", f"with full_attn_layers every layer from 1 to {layers} once")
    return ["full_attention" if i + 1 in full else "linear_attention" for i in range(layers)]


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `kimi_linear`, published or saved by transformers."""
    reader = ConfigReader("kimi_linear", config)
    layers = reader.integer("num_hidden_layers")
    eps = reader.number("rms_norm_eps", 1e-5)
    linear = reader.child("linear_attn_config")
    if linear is None:
        heads, size = reader.integer("linear_num_heads"), reader.integer("linear_head_dim")
        kernel = reader.integer("linear_conv_kernel_dim", 4, minimum=2)
    else:
        heads, size = linear.integer("num_heads"), linear.integer("head_dim")
        kernel = linear.integer("short_conv_kernel_size", 4, minimum=2)
    mixer = KimiDeltaAttentionConfig(heads, size, kernel, eps, bottleneck=size)
    attention = read_latent_attention(reader, rope=None, head_gate=False)
    types = read_layer_types(reader, linear, layers)
    feed_forward = read_feed_forward(reader, layers, dense=1, groups=(1, 1), scale=2.446)
    reader.fixed({"hidden_act": "silu", "mla_use_nope": True})
    reader.ignore(UNUSED)
    return read_decoder_config(
        reader,
        layers=paired(types, {"full_attention": attention, "linear_attention": mixer}, feed_forward),
        eps=eps,
        tied=reader.choice("tie_word_embeddings", [False], False),
        positions=DEFAULT_POSITIONS,
    )


def _mlp(c: MlpConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
    # transformers saves dense layers under the name of sparse layers; published files do not.
    names = {part: (f"mlp.{part}", f"block_sparse_moe.{part}") for part in ("gate_proj", "up_proj", "down_proj")}
    return branch_weights(c, hidden, path, layer, names)


LAYERS = by_kind(
    {
        LatentAttentionConfig: ("self_attn", partial(latent_attention_weights, outputs=("o_proj",), interleaved=False)),
        KimiDeltaAttentionConfig: ("self_attn", partial(delta_attention_weights, outputs=("o_proj",), rank=4)),
        MoeConfig: ("block_sparse_moe", partial(moe_weights, names=NUMBERED, float32_router=True)),
        MlpConfig: ("", _mlp),
    }
)
weights = partial(decoder_weights, describe=LAYERS)
MODULES = ((r"\.forget_gate\.", "."), (r"\.mlp\.", ".block_sparse_moe."))
KIMI_LINEAR = text_family(
    "kimi_linear", "KimiLinear", read_config, weights, KimiDeltaAttentionConfig, LatentAttentionConfig, modules=MODULES
)
