"""Alice AI: KDA, gated attention, MoE, and attention over blocks of layers as residuals.

Source: the model file of its authors for vLLM. Projections of the mixers have the layout of Kimi-Linear and Qwen3-Next.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.fields import paired, read_attending, read_decoder_config, read_heads
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import BlockResidual, BranchConfig, DecoderConfig
from models.families.family import text_family
from models.families.linear_attention.kimi import delta_attention_weights
from models.families.qwen import EXPERTS, read_moe
from models.layers.moe import MoeConfig
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.kimi_delta_attention import KimiDeltaAttentionConfig
from models.weights.layer_weights import Path, by_kind, decoder_weights
from models.weights.sources import Weight, tensor

DEFAULT_POSITIONS = 262_144
IMPLEMENTED: dict[str, Any] = {
    "router_score_function": "sigmoid",
    "router_bias_correction": True,
    "kda_allow_negative_eigenvalues": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "attention_bias": False,
    "qkv_bias": False,
    "attn_output_gate": True,
    "layer_scale": False,
    "use_sliding_window": False,
    "mamba_ssm_dtype": "float32",
    "hidden_act": "silu",
}
"""Fields of the mathematics, with the implemented value."""
# Every layer has experts; MTP layers; caches of other systems.
UNUSED = ("intermediate_size", "mtp_num_hidden_layers", "num_nextn_predict_layers", "number_of_conv_states")
MIXES = ("attn_res", "mlp_res")
"""Tensor names of the mixes before a layer's branches."""


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("alice_ai", config)
    layers, eps = reader.integer("num_hidden_layers"), reader.number("rms_norm_eps", 1e-6)
    heads, kv_heads, head_dim = read_heads(reader, 2, 256)
    rope = read_rope(reader, head_dim, 1e6, 0.25, DEFAULT_POSITIONS)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, QkNorm(eps, offset=1.0), output_gate=True)
    linear_heads, size = reader.integer("linear_num_key_heads", 32), reader.integer("linear_key_head_dim", 128)
    for name, value, default in (
        ("linear_num_value_heads", linear_heads, 32),
        ("linear_value_head_dim", size, 128),
    ):
        if reader.integer(name, default) != value:
            reader.fault(name, f"{value}, as of the keys")
    kernel = reader.integer("linear_conv_kernel_dim", 4, minimum=2)
    linear = KimiDeltaAttentionConfig(linear_heads, size, kernel, eps, bottleneck=size)
    moe = read_moe(reader, reader.flag("norm_topk_prob", True))
    moe = replace(moe, router=replace(moe.router, scores="sigmoid", bias=True, epsilon=1e-20))
    kinds = read_attending(reader, layers, "full_attention_interval", 4)
    block = reader.integer("block_attn_res_block_size", 4)
    branches = paired(kinds, {"full_attention": attention, "linear_attention": linear}, [moe] * layers)
    reader.fixed(IMPLEMENTED)
    reader.ignore(UNUSED)
    return read_decoder_config(
        reader,
        layers=tuple(
            (BlockResidual(mixer, begins=i % block == 0, mixes=i > 0), BlockResidual(forward, begins=False, mixes=True))
            for i, (mixer, forward) in enumerate(branches)
        ),
        eps=eps,
        tied=reader.flag("tie_word_embeddings", False),
        positions=DEFAULT_POSITIONS,
        rope=rope,
        norm_offset=1.0,
    )


def _mix(path: Path, name: str, hidden: int) -> list[Weight]:
    """List the query and the norm of a mix at `path`."""
    return [
        tensor((*path, "query"), f"{name}_proj.weight", (1, hidden), float32=True),
        tensor((*path, "norm", "weight"), f"{name}_norm_weight", (hidden,), float32=True),
    ]


_linear = partial(delta_attention_weights, outputs=("o_proj",), rate="a_log_bias")
LAYERS = by_kind({MoeConfig: EXPERTS, KimiDeltaAttentionConfig: ("linear_attn", _linear)})


def _describe(c: BranchConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
    assert isinstance(c, BlockResidual)
    mix = _mix((*path[:-1], "mix"), f"{layer}.{MIXES[int(path[3])]}", hidden) if c.mixes else []
    return mix + LAYERS(c, hidden, path, layer)


def weights(config: DecoderConfig) -> list[Weight]:
    return decoder_weights(config, _describe) + _mix(("mix",), "model.attnres_final.res", config.hidden_size)


ALICE_AI = text_family(
    "alice_ai", "AliceAI", read_config, weights, KimiDeltaAttentionConfig, AttentionConfig, skipped=(r"mtp\..*",)
)
