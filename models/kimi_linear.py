"""Kimi-Linear: Kimi Delta Attention with latent attention without positions, sigmoid-routed experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import ConfigReader
from models.decoder import DecoderConfig
from models.decoder_fields import read_decoder_config, read_kinds
from models.family import Family
from models.kimi import (
    delta_attention_weights,
    latent_attention_weights,
    read_feed_forward,
    read_latent_attention,
)
from models.kimi_delta_attention import KimiDeltaAttentionConfig
from models.latent_attention import LatentAttentionConfig
from models.layer_weights import mlp_weights, moe_weights
from models.mlp import MlpConfig
from models.moe import MoeConfig
from models.weights import Weight, tensor

EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}

# Positions are not used; the sizes follow from others.
UNUSED = ("head_dim", "qk_head_dim", "rope_theta", "rope_scaling", "num_nextn_predict_layers", "pretraining_tp")


def read_layer_types(reader: ConfigReader, linear: ConfigReader | None, layers: int) -> list[str]:
    """`layer_types`, or the two lists of `linear_attn_config`, which count layers from 1."""
    if "layer_types" in reader or linear is None:
        return read_kinds(reader, "layer_types", ["linear_attention", "full_attention"], layers)
    kda, full = linear.integers("kda_layers"), linear.integers("full_attn_layers")
    if sorted((*kda, *full)) != list(range(1, layers + 1)):
        linear.fault("kda_layers", f"with full_attn_layers every layer from 1 to {layers} once")
    return ["full_attention" if i + 1 in full else "linear_attention" for i in range(layers)]


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `kimi_linear`, as published or as transformers saves it."""
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
    feed_forward = read_feed_forward(reader, layers, dense=1)
    reader.choice("hidden_act", ["silu"], "silu")
    reader.choice("mla_use_nope", [True], True)
    for name in UNUSED:
        reader.get(name)
    return read_decoder_config(
        reader,
        layers=tuple(
            (attention if kind == "full_attention" else mixer, forward)
            for kind, forward in zip(types, feed_forward, strict=True)
        ),
        eps=eps,
        tied=reader.choice("tie_word_embeddings", [False], False),
    )


def weights(config: DecoderConfig) -> list[Weight]:
    """Every parameter of the decoder with the names of the published checkpoints."""
    hidden, vocab = config.hidden_size, config.vocab_size
    found = [
        tensor(("embed_tokens",), "model.embed_tokens.weight", (vocab, hidden)),
        tensor(("norm", "weight"), "model.norm.weight", (hidden,), float32=True),
        tensor(("lm_head",), "lm_head.weight", (vocab, hidden)),
    ]
    for i, (mixer, forward) in enumerate(config.layers):
        layer, at = f"model.layers.{i}", ("layers", i, "branches")
        for j, norm in enumerate(("input_layernorm", "post_attention_layernorm")):
            found.append(tensor((*at, j, "norm", "weight"), f"{layer}.{norm}.weight", (hidden,), float32=True))
        mixer_at, forward_at, name = (*at, 0, "inner"), (*at, 1, "inner"), f"{layer}.self_attn"
        if isinstance(mixer, LatentAttentionConfig):
            found += latent_attention_weights(mixer, hidden, mixer_at, name, ("o_proj",), interleaved=False)
        elif isinstance(mixer, KimiDeltaAttentionConfig):
            a_log = (1, 1, mixer.heads, 1)
            found += delta_attention_weights(mixer, hidden, mixer_at, name, a_log, ("o_proj",))
        if isinstance(forward, MoeConfig):
            found += moe_weights(forward, hidden, forward_at, f"{layer}.block_sparse_moe", EXPERT)
        elif isinstance(forward, MlpConfig):
            # transformers saves the dense layers under the name of the sparse ones; the published files do not.
            places = (f"{layer}.mlp", f"{layer}.block_sparse_moe")
            published, saved = (mlp_weights(forward.width, hidden, forward_at, place) for place in places)
            found += [replace(a, options=a.options + b.options) for a, b in zip(published, saved, strict=True)]
    return found


KIMI_LINEAR = Family("kimi_linear", ("kimi_linear",), read_config, weights, (), ())
