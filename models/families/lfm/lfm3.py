"""LFM3: gated short convolutions, attention with or without a window, norms around every layer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.fields import paired, read_decoder_config, read_heads, read_kinds, spelled
from models.config.reader import ConfigReader
from models.config.rope import read_ropes
from models.decoder.decoder import DecoderConfig, PostNorm
from models.families.family import text_family
from models.layers.mlp import MlpConfig
from models.layers.rope import ProportionalScaling, Rope
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_short_conv import GatedShortConvConfig
from models.weights.layer_weights import NUMBERED, branch_weights, by_kind, decoder_weights

DEFAULT_POSITIONS = 128_000
KINDS = ("conv", "sliding_attention", "full_attention")


def default_kinds(layers: int) -> list[str]:
    """Return `layer_types` of transformers: of four layers the third attends, the first within the window."""
    attending = {2: "full_attention", 0: "sliding_attention"}
    return [attending.get(i % 4, "conv") if i else "conv" for i in range(layers)]


def read_attention(reader: ConfigReader, kinds: Sequence[str], eps: float) -> dict[str, AttentionConfig]:
    heads, kv_heads, head_dim = read_heads(reader, 4, 128)
    if head_dim % 2:
        reader.fault("head_dim", "an even number, for rotated pairs")
    defaults = {
        "full_attention": Rope(head_dim, 1e6, ProportionalScaling(head_dim // 4)),
        "sliding_attention": Rope(head_dim, 1e4),
    }
    ropes = read_ropes(reader, head_dim, {kind: rope for kind, rope in defaults.items() if kind in kinds}, 1e6)
    gate = reader.flag("use_attention_gate", True)
    # A null window has no meaning in a layer with a window.
    window = reader.integer("sliding_window", 256 if reader.absent("sliding_window") else None)
    plain = AttentionConfig(heads, kv_heads, head_dim, qk_norm=QkNorm(eps), head_gate=gate)
    windows = {"sliding_attention": window, "full_attention": None}
    return {kind: replace(plain, rope=rope, window=windows[kind]) for kind, rope in ropes.items()}


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("lfm3", config)
    layers = reader.integer("num_hidden_layers", 24)
    eps = reader.number(spelled(reader, "norm_eps", "rms_norm_eps"), 1e-5)
    kinds = read_kinds(reader, "layer_types", KINDS, layers, default_kinds(layers))
    conv = GatedShortConvConfig(reader.integer("conv_L_cache", 7, minimum=2), reader.integer("hidden_size"))
    mlp = MlpConfig(reader.integer("intermediate_size"))
    blocks = paired(kinds, {"conv": conv, **read_attention(reader, kinds, eps)}, [mlp] * layers)
    if reader.flag("use_sandwich_norm", True):
        blocks = tuple(tuple(PostNorm(branch, in_front=True) for branch in block) for block in blocks)
    reader.fixed(dict.fromkeys(("attention_bias", "conv_bias"), False))
    return read_decoder_config(
        reader,
        layers=blocks,
        eps=eps,
        positions=DEFAULT_POSITIONS,
        tied=reader.flag("tie_word_embeddings", True),
    )


weights = partial(
    decoder_weights,
    describe=by_kind(
        {
            AttentionConfig: ("self_attn", partial(branch_weights, names={"gate": "gate_proj"})),
            MlpConfig: ("feed_forward", partial(branch_weights, names=NUMBERED)),
            GatedShortConvConfig: ("conv", branch_weights),
        }
    ),
    norms=("operator_norm", "ffn_norm"),
    post_norms=("post_operator_norm", "post_ffn_norm"),
    final_norm="model.embedding_norm.weight",
)
LFM3 = text_family(
    "lfm3",
    "Lfm3",
    read_config,
    weights,
    GatedShortConvConfig,
    AttentionConfig,
    modules=((r"\.self_attn\.g_proj\.", ".self_attn.gate_proj."),),
)
