"""MiniMax-Text-01 and MiniMax-M1 (`minimax`): lightning attention or attention with RoPE, MoE, normed residual stream.

Sources: `minimax` of transformers, and the spelling of the original checkpoints (`minimax_text_01`, `minimax_m1`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from models.config.experts import read_experts
from models.config.fields import paired, read_decoder_config, read_heads, read_kinds, spelled
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import BranchConfig, DecoderConfig, NormedResidual
from models.families.family import text_family
from models.families.linear_attention.lightning import lightning_weights, slopes
from models.layers.moe import MoeConfig
from models.layers.router import RouterConfig
from models.mixers.attention import AttentionConfig
from models.mixers.lightning_attention import LightningAttentionConfig
from models.weights.layer_weights import NUMBERED, Path, by_kind, decoder_weights, moe_weights
from models.weights.sources import Weight, rows

DEFAULT_POSITIONS = 131_072
NORM_EPS = 1e-6
"""Of the norm in lightning attention, in every version of the model's code."""
ORIGINAL = ("minimax_text_01", "minimax_m1")
# Block sizes of kernels, training, and the mode of absent shared experts.
UNUSED = "block_size block router_jitter_noise shared_moe_mode".split()


def _read_kinds(reader: ConfigReader, layers: int) -> list[str]:
    """Read the kind of each layer, by name, or by number in original files."""
    types = ("linear_attention", "full_attention")
    name = spelled(reader, "attn_type_list", "decoder_attention_types")
    if "layer_types" in reader or name not in reader:
        return read_kinds(reader, "layer_types", types, layers, [types[(i + 1) % 2] for i in range(layers)])
    numbers = reader.integers(name)
    if len(numbers) != layers or max(numbers) > 1:
        reader.fault(name, f"a list of {layers} numbers, 0 for lightning attention and 1 for attention")
        return [types[0]] * layers
    return [types[number] for number in numbers]


def _residual(reader: ConfigReader, kind: str, original: str, inner: BranchConfig) -> NormedResidual:
    """Read the factors on normed stream and outputs of one kind of branch."""
    names = ((f"{kind}_{factor}_factor", f"layernorm_{original}_{factor}") for factor in ("alpha", "beta"))
    return NormedResidual(inner, *(reader.number(spelled(reader, *pair), 1.0) for pair in names))


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `minimax`, or of the original checkpoints."""
    reader = ConfigReader("minimax", config)
    layers = reader.integer("num_hidden_layers")
    heads, kv_heads, head_dim = read_heads(reader, 8)
    eps = reader.number("rms_norm_eps", 1e-5)
    if heads & (heads - 1):
        reader.fault("num_attention_heads", "a power of two: for others, transformers and MiniMax differ in the rates")
    # transformers rotates the whole head whatever these fields are, MiniMax half of it.
    rotated = reader.integer("rotary_dim", head_dim)
    if rotated % 2 or rotated > head_dim:
        reader.fault("rotary_dim", f"an even number of the {head_dim} values of a head")
        rotated = head_dim
    rope = read_rope(reader, head_dim, 1e6, rotated / head_dim, DEFAULT_POSITIONS)
    window = None if reader.get("sliding_window") is None else reader.integer("sliding_window")
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, window=window)
    lightning = LightningAttentionConfig(heads, head_dim, 1, NORM_EPS, activated=True)
    experts = read_experts(reader, "num_local_experts", "num_experts", experts=8, per_token=2)
    moe = MoeConfig(RouterConfig(*experts, normalise=True), reader.integer("intermediate_size"))
    mixers = {
        "full_attention": _residual(reader, "full_attn", "full_attention", attention),
        "linear_attention": _residual(reader, "linear_attn", "linear_attention", lightning),
    }
    feed_forward = _residual(reader, "mlp", "mlp", moe)
    kinds = _read_kinds(reader, layers)
    reader.choice("hidden_act", ["silu"], "silu")
    if reader.choice("postnorm", [True], None) is None and config.get("model_type") in ORIGINAL:
        reader.fault("postnorm", "true, a residual stream after the norms")
    if any(reader.integers("shared_intermediate_size")):
        reader.fault("shared_intermediate_size", "0 or zeros, no shared experts")
    reader.ignore(UNUSED)
    return read_decoder_config(
        reader,
        layers=paired(kinds, mixers, [feed_forward] * layers),
        eps=eps,
        tied=reader.flag("tie_word_embeddings", False),
        positions=DEFAULT_POSITIONS,
        rope=rope,
    )


def _lightning(layers: int, c: LightningAttentionConfig, hidden: int, path: Path, name: str) -> list[Weight]:
    # The file has the rows [q | k | v] of each head.
    by_part = np.arange(3 * c.width).reshape((c.heads, 3, c.head_size)).swapaxes(0, 1).reshape(-1)
    inputs = rows(f"{name}.qkv_proj.weight", (3 * c.width, hidden), by_part)
    rates = slopes(c.heads) * (1 - int(path[1]) / (layers - 1 + 1e-5) + 1e-5)
    names = {"gate": "output_gate", "norm": "norm"}
    return lightning_weights(c, hidden, path, name, names=names, inputs=inputs, rates=rates)


def weights(config: DecoderConfig) -> list[Weight]:
    """List every parameter with the published tensor names."""
    parts = {
        LightningAttentionConfig: ("self_attn", partial(_lightning, config.num_layers)),
        MoeConfig: ("block_sparse_moe", partial(moe_weights, names=NUMBERED)),
    }
    return decoder_weights(config, by_kind(parts))


MINIMAX = text_family(
    "minimax",
    ("MiniMax", "MiniMaxText01", "MiniMaxM1"),
    read_config,
    weights,
    LightningAttentionConfig,
    AttentionConfig,
    model_types=ORIGINAL,
    # Tables that follow from the rates, which transformers saves.
    skipped=(r".*\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)",),
    modules=((r"\.mlp\.", ".block_sparse_moe."),),
)
