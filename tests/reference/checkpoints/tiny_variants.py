"""Tiny checkpoints for comparisons: plain numbers, no torch.

A variant is a Hugging Face config plus choices of the layout on disk. Together the variants cover
the value-to-key head ratios 1, 2 and 4, key size != value size, head size != hidden/heads, convolution kernels 3 and
4, tied and untied heads, both rope spellings, both spellings of the layer pattern, both expert layouts, text-only and
multimodal prefixes, shards, bfloat16 storage, and the dense layers of Qwen3-Next.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from comparison import TOLERANCES
from tiny_mamba_variants import MAMBA_VARIANTS

RAGGED_LENGTHS = (1, 3, 4, 5, 17, 33, 64, 65)
GREEDY_TOKENS = 32


@dataclasses.dataclass(frozen=True)
class Variant:
    """A tiny checkpoint.

    `text` holds the fields of the text config. `multimodal` lets the Hugging Face class with a vision tower write it
    (nested `text_config`, names under `model.language_model.`). `fused_experts` stores `[E, 2I, H]` tensors (`[E, I,
    H]` where experts have no gate) instead of one matrix per expert. `legacy_rope` and `interval` rewrite config.json
    to the older spellings. `mtp` adds the tensors of a multi-token-prediction head, which are read where they are
    asked for. `stored` is the dtype in the file; weights are rounded to it before the oracle runs. `rewritten` holds
    fields of config.json as a published checkpoint spells them, None for those that it lacks.
    """

    name: str
    family: str
    text: Mapping[str, Any]
    multimodal: bool = False
    fused_experts: bool = False
    shards: int = 1
    legacy_rope: bool = False
    interval: int | None = None
    mtp: bool = False
    stored: Literal["float32", "bfloat16"] = "float32"
    rewritten: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The config.json of a text model."""
        return {"model_type": self.family, **self.text}

    @property
    def tied(self) -> bool:
        return bool(self.text["tie_word_embeddings"])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.family]


def _rope(factor: float, theta: float = 10000.0, sections: tuple[int, int, int] | None = None) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor}
    if sections is not None:
        rope |= {"mrope_section": list(sections), "mrope_interleaved": True}
    return rope


BASE: dict[str, Any] = {
    "vocab_size": 331, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512, "num_hidden_layers": 4, "tie_word_embeddings": False,
}  # fmt: skip
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
NEXT = BASE | MOE | {"intermediate_size": 96, "rope_parameters": _rope(0.25)}
DENSE = BASE | {"intermediate_size": 96, "rope_parameters": _rope(0.25, sections=(1, 1, 0))}
TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
SPARSE = BASE | MOE | {"rope_parameters": _rope(0.25, sections=(1, 1, 0))}

QWEN = (
    Variant("next_base", "qwen3_next", NEXT | TWO_LAYERS),
    Variant("next_old_fields", "qwen3_next", NEXT | {
        "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 3, "norm_topk_prob": False, "num_hidden_layers": 2,
        "rope_parameters": _rope(0.5, theta=5000.0),
    }, legacy_rope=True, interval=2, mtp=True),
    Variant("next_dense_layers", "qwen3_next", NEXT | {
        "linear_num_value_heads": 8, "linear_key_head_dim": 8, "head_dim": 32, "decoder_sparse_step": 2,
        "mlp_only_layers": [3], "tie_word_embeddings": True,
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "linear_attention"],
    }, fused_experts=True, shards=3),
    Variant("dense_base", "qwen3_5", DENSE, shards=2),
    Variant("dense_multimodal", "qwen3_5", DENSE | {
        "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20,
        "linear_conv_kernel_dim": 3, "head_dim": 32, "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "tie_word_embeddings": True,
        "rope_parameters": _rope(0.25, sections=(2, 1, 1)),
    }, multimodal=True, mtp=True),
    Variant("dense_interval", "qwen3_5", DENSE | {
        "linear_num_value_heads": 8, "linear_value_head_dim": 8, "num_key_value_heads": 1, "num_hidden_layers": 4,
        "rope_parameters": _rope(0.5, theta=1000000.0, sections=(2, 1, 1)),
    }, interval=3, shards=2, stored="bfloat16"),
    Variant("sparse_base", "qwen3_5_moe", SPARSE | TWO_LAYERS),
    Variant("sparse_multimodal", "qwen3_5_moe", SPARSE | {
        "linear_key_head_dim": 8, "linear_num_value_heads": 8, "head_dim": 32, "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "rope_parameters": _rope(0.5, sections=(4, 2, 2)),
    }, multimodal=True, fused_experts=True, shards=2, mtp=True, stored="bfloat16"),
)  # fmt: skip

INDEXED = SPARSE | {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "indexed_attention", "linear_attention"], "hc_count": 3,
    "hc_lowrank": 24, "indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 12, "indexer_budget": 8,
    "indexer_compress_ratio": 4, "output_gate_type": "sigmoid", "ple_layer_ids": [1, 3], "ple_embed_dim": 32,
    "heads_per_ngram": 4, "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 5,
}  # fmt: skip
QWEN4 = (
    Variant("indexed_base", "qwen4_exp", INDEXED),
    Variant("indexed_multimodal", "qwen4_exp", INDEXED | {
        "linear_num_value_heads": 8, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 3, "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention", "full_attention"], "hc_count": 2, "indexer_n_heads": 16,
        "indexer_head_dim": 16, "indexer_budget": 12, "indexer_compress_ratio": 2, "output_gate_type": None,
        "norm_topk_prob": False, "ple_layer_ids": [1], "ple_embed_dim": 24, "ple_conv_kernel_size": 2, "ngram_size": 4,
        "heads_per_ngram": 2, "seed": 7, "split_ngram_parts": 1,
        "rope_parameters": _rope(0.5, theta=5000.0, sections=(4, 2, 2)),
    }, multimodal=True, fused_experts=True, shards=2, stored="bfloat16"),
    Variant("indexed_plain", "qwen4_exp", INDEXED | {
        "num_hidden_layers": 4, "layer_types": None, "indexer_budget": 64, "indexer_compress_ratio": 64,
        "ple_layer_ids": None, "tie_word_embeddings": True,
    }, interval=2),
)  # fmt: skip

SMALL: dict[str, Any] = {
    "vocab_size": 331, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 64,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
LFM_LAYERS = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
LFM = (
    Variant("lfm2_base", "lfm2", SMALL | LFM_LAYERS | {"block_auto_adjust_ff_dim": False}),
    Variant("lfm2_published", "lfm2", SMALL | {
        "num_hidden_layers": 4, "layer_types": ["full_attention", "conv", "conv", "full_attention"],
        "num_key_value_heads": 1, "conv_L_cache": 4, "block_auto_adjust_ff_dim": True, "block_multiple_of": 24,
        "block_ffn_dim_multiplier": 1.3, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }, stored="bfloat16", rewritten={
        "layer_types": None, "full_attn_idxs": [0, 3], "intermediate_size": None, "block_ff_dim": 96,
        "tie_word_embeddings": None, "tie_embedding": True, "rope_parameters": None, "rope_theta": 10000.0,
        "block_use_swiglu": True, "use_pos_enc": True, "conv_dim": 64,
    }),
    Variant("lfm2_moe_base", "lfm2_moe", SMALL | LFM_LAYERS | {
        "num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    }),
    Variant("lfm2_moe_scaled", "lfm2_moe", SMALL | {
        "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_dense_layers": 0, "num_experts": 6,
        "num_experts_per_tok": 3, "moe_intermediate_size": 24, "use_expert_bias": False, "norm_topk_prob": False,
        "routed_scaling_factor": 1.7, "tie_word_embeddings": True,
    }, fused_experts=True, shards=2),
)  # fmt: skip

LFM3 = SMALL | {
    "head_dim": 16, "conv_L_cache": 5, "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "conv", "full_attention"], "sliding_window": 5,
}  # fmt: skip
LARA = BASE | MOE | {
    "num_hidden_layers": 3, "layer_types": ["sliding_attention", "linear_attention", "full_attention"],
    "sliding_window": 5,
}  # fmt: skip
WINDOWED = (
    Variant("lfm3_base", "lfm3", LFM3),
    Variant("lfm3_plain", "lfm3", LFM3 | {
        "num_key_value_heads": 1, "conv_L_cache": 3, "num_hidden_layers": 5, "layer_types": None, "sliding_window": 33,
        "use_sandwich_norm": False, "use_attention_gate": False, "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.75, "factor": 2.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }, rewritten={"layer_types": None}, stored="bfloat16", shards=2),
    Variant("lara_base", "lara_mini", LARA),
    Variant("lara_period", "lara_mini", LARA | {
        "num_hidden_layers": 5, "layer_types": None, "sliding_window": 17, "linear_num_value_heads": 8,
        "linear_value_head_dim": 24, "linear_conv_kernel_dim": 3, "norm_topk_prob": False, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }, rewritten={"layer_types": None}, stored="bfloat16", shards=2),
)  # fmt: skip

MAMBA = tuple(Variant(name, **fields) for name, fields in MAMBA_VARIANTS.items())

LATENT = {
    "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "qk_nope_head_dim": 12,
}  # fmt: skip
KIMI_BASE = SMALL | LATENT | {
    "moe_intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_head_dim": 16, "linear_num_heads": 4,
}  # fmt: skip
KIMI = (
    Variant("kimi_base", "kimi_linear", KIMI_BASE),
    Variant("kimi_published", "kimi_linear", KIMI_BASE | {
        "linear_head_dim": 12, "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "num_local_experts": 12,
        "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.7,
        "norm_topk_prob": False, "v_head_dim": 20, "mlp_layer_types": ["sparse", "dense", "sparse"],
    }, shards=2, stored="bfloat16", rewritten={
        "layer_types": None, "linear_head_dim": None, "linear_num_heads": None, "linear_conv_kernel_dim": None,
        "linear_attn_config": {
            "kda_layers": [1, 3], "full_attn_layers": [2], "head_dim": 12, "num_heads": 3,
            "short_conv_kernel_size": 3,
        },
        "mla_use_nope": True,
    }),
    Variant("kimi_fused", "kimi_linear", KIMI_BASE | {"n_shared_experts": 2}, fused_experts=True),
    Variant("kimi_query_rank", "kimi_linear", KIMI_BASE | {"q_lora_rank": 24}),
)  # fmt: skip

LING_BASE = SMALL | LATENT | {
    "moe_intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "first_k_dense_replace": 1, "head_dim": 16, "num_mtp_layers": 0,
}  # fmt: skip
LING = (
    Variant("ling_base", "bailing_hybrid", LING_BASE),
    Variant("ling_softplus", "bailing_hybrid", LING_BASE | {
        "head_dim": 12, "kda_safe_gate": False, "short_conv_kernel_size": 3, "v_head_dim": 20, "n_shared_experts": 2,
        "norm_topk_prob": False, "layer_types": ["full_attention", "linear_attention", "full_attention"],
    }, fused_experts=True, stored="bfloat16"),
    Variant("ling_query_rank", "bailing_hybrid", LING_BASE | {"q_lora_rank": 24}),
)  # fmt: skip

LING_LIGHTNING = Variant(
    "ling_lightning",
    "bailing_hybrid",
    SMALL
    | LATENT
    | {
        "architectures": ["BailingMoeV2_5ForCausalLM"], "num_attention_heads": 6, "num_key_value_heads": 2,
        "q_lora_rank": 24, "head_dim": 16, "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "group_norm_size": 2, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "num_shared_experts": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5, "num_hidden_layers": 6,
        "layer_group_size": 3, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
        "expert_swiglu_limit_list": [0, 0.3, 0, 0.3, 0.2, 0], "share_expert_swiglu_limit_list": [0, 0, 0.2, 0.3, 0, 0],
    },
)  # fmt: skip
"""Ling 2.5, without a class in transformers; tests compare it with `float64_delta`."""

GIGACHAT_BASE: dict[str, Any] = SMALL | LATENT | {
    "q_lora_rank": 24, "rope_theta": 10000.0, "rms_norm_eps": 1e-3, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "linear_gating_type": "gated_rmsnorm_sigmoid_zero_centered", "linear_sigmoid_gate_scale": 1.6,
    "layernorm_gating_weight": 0.6, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5, "swiglu_limit": 0.4,
    "num_hidden_layers": 3, "full_attention_layers": [1], "first_k_dense_replace": 1,
    "rope_scaling": {
        "type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 64,
    },
}  # fmt: skip
ALICE_BASE: dict[str, Any] = BASE | MOE | {
    "rms_norm_eps": 1e-3, "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "linear_num_key_heads": 4,
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "block_attn_res_block_size": 2,
}  # fmt: skip
GATED = (
    Variant("gigachat_base", "gigachat3_5", GIGACHAT_BASE),
    Variant(
        "gigachat_plain",
        "gigachat3_5",
        {name: value for name, value in GIGACHAT_BASE.items() if name not in ("rope_scaling", "full_attention_layers")}
        | {
            "q_lora_rank": None, "use_mla_scaling_factor": False, "gated_attention": False,
            "linear_gating_type": "gated_rmsnorm_sigmoid", "linear_attn_o_norm_eps": 1e-2, "linear_conv_kernel_dim": 3,
            "linear_num_key_heads": 3, "linear_num_value_heads": 3, "v_head_dim": 20, "n_shared_experts": 2,
            "norm_topk_prob": False, "swiglu_limit": 0.0, "first_k_dense_replace": 0, "num_hidden_layers": 4,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
    ),
    Variant("alice_base", "alice_ai", ALICE_BASE),
    Variant("alice_blocks", "alice_ai", {name: value for name, value in ALICE_BASE.items() if name != "layer_types"} | {
        "num_hidden_layers": 4, "full_attention_interval": 2, "block_attn_res_block_size": 3, "linear_num_key_heads": 3,
        "linear_num_value_heads": 3, "linear_key_head_dim": 12, "linear_value_head_dim": 12,
        "linear_conv_kernel_dim": 3, "num_key_value_heads": 1, "partial_rotary_factor": 0.5, "norm_topk_prob": False,
        "tie_word_embeddings": True,
    }),
)  # fmt: skip
"""GigaChat3.5 and Alice AI, without a class in transformers; tests compare them with `float64_gated`."""

MINIMAX_BASE = SMALL | {
    "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "block_size": 16,
    "full_attn_alpha_factor": 1.7, "full_attn_beta_factor": 0.8, "linear_attn_alpha_factor": 1.3,
    "linear_attn_beta_factor": 1.1, "mlp_alpha_factor": 0.9, "mlp_beta_factor": 1.2,
}  # fmt: skip
MINIMAX = (
    Variant("minimax_base", "minimax", MINIMAX_BASE),
    Variant("minimax_window", "minimax", MINIMAX_BASE | {
        "head_dim": 12, "num_attention_heads": 8, "num_key_value_heads": 1, "layer_types": None, "sliding_window": 17,
        "num_experts_per_tok": 3, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }, rewritten={"layer_types": None}, stored="bfloat16", shards=2),
    Variant("minimax_fused", "minimax", MINIMAX_BASE, fused_experts=True),
)  # fmt: skip

OLMO_BASE = SMALL | {
    "num_key_value_heads": 4, "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 4,
    "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 24,
}  # fmt: skip
OLMO = (
    Variant("olmo_base", "olmo_hybrid", OLMO_BASE),
    Variant(
        "olmo_grouped",
        "olmo_hybrid",
        OLMO_BASE
        | {
            "num_key_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_value_head_dim": 20,
            "linear_conv_kernel_dim": 3,
            "linear_allow_neg_eigval": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "layer_types": ["full_attention", "linear_attention", "full_attention"],
        },
        shards=2,
        stored="bfloat16",
    ),
)

VARIANTS = QWEN + QWEN4 + LFM + WINDOWED + MAMBA + KIMI + LING + MINIMAX + OLMO


def shrunk(variant: Variant) -> Variant:
    """Return the variant at hidden size 32, vocabulary 97, for the repository.

    At most three layers: compiling is most of the time that a test of it takes.
    """
    sizes: dict[str, Any] = {"hidden_size": 32, "vocab_size": 97}
    narrow = {"intermediate_size": 48, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}
    sizes |= {name: width for name, width in narrow.items() if name in variant.text}
    if "num_hidden_layers" in variant.text:
        sizes["num_hidden_layers"] = min(variant.text["num_hidden_layers"], 3)
    if variant.family == "mamba2":
        sizes["head_dim"] = variant.text["head_dim"] // 2
    if "layer_types" in variant.text:
        sizes["layer_types"] = variant.text["layer_types"][:3]
    return dataclasses.replace(variant, text=dict(variant.text) | sizes, stored="bfloat16")


def variant(name: str) -> Variant:
    """The variant of that name."""
    return {each.name: each for each in (*VARIANTS, *GATED, LING_LIGHTNING)}[name]


GOLDEN = tuple(
    shrunk(variant(name))
    for name in (
        "next_old_fields", "next_dense_layers", "dense_multimodal", "dense_interval", "sparse_base",
        "sparse_multimodal", "indexed_base", "lfm2_base", "lfm2_moe_base", "lfm3_base", "lara_base", "mamba_base",
        "falcon_mamba_base", "jamba_base", "mamba2_base", "zamba2_base", "nemotron_latent", "granite_experts",
        "bamba_base", "falcon_base", "kimi_base", "ling_base", "ling_query_rank", "minimax_base", "olmo_base",
        "gigachat_base", "alice_base",
    )
)  # fmt: skip
OTHER_GOLDENS = tuple(each.name for each in GOLDEN if each.family not in {qwen.family for qwen in QWEN})
"""The golden of each family apart from the Qwen ones."""


def mtp_shapes(variant: Variant) -> dict[str, tuple[int, ...]]:
    """Shapes of an MTP head's tensors with separate experts; some are unused."""
    text = variant.text
    hidden = text["hidden_size"]
    if variant.family not in {qwen.family for qwen in QWEN}:
        return {"mtp.layers.0.eh_proj.weight": (hidden, 2 * hidden), "mtp.layers.0.enorm.weight": (hidden,)}
    size, layer = text["head_dim"], "mtp.layers.0"
    queries, keys = text["num_attention_heads"] * size, text["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {"mtp.fc.weight": (hidden, 2 * hidden)}
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        shapes[f"mtp.{norm}.weight"] = (hidden,)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"{layer}.{norm}.weight"] = (hidden,)
    for part, shape in {
        "q_proj": (2 * queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "q_norm": (size,),
        "k_norm": (size,),
    }.items():
        shapes[f"{layer}.self_attn.{part}.weight"] = shape

    def gated(name: str, width: int) -> None:
        for part in ("gate", "up", "down"):
            shapes[f"{name}.{part}_proj.weight"] = (hidden, width) if part == "down" else (width, hidden)

    if "num_experts" not in text:
        gated(f"{layer}.mlp", text["intermediate_size"])
        return shapes
    for expert in range(text["num_experts"]):
        gated(f"{layer}.mlp.experts.{expert}", text["moe_intermediate_size"])
    gated(f"{layer}.mlp.shared_expert", text["shared_expert_intermediate_size"])
    shapes[f"{layer}.mlp.gate.weight"] = (text["num_experts"], hidden)
    shapes[f"{layer}.mlp.shared_expert_gate.weight"] = (1, hidden)
    return shapes


def ragged_prompts(variant: Variant, seed: int, attempt: int = 0) -> list[list[int]]:
    """Eight random prompts of the lengths `RAGGED_LENGTHS`; ids of image tokens are left out."""
    text_tokens = variant.text["vocab_size"] - 4
    return [
        np.random.default_rng((seed, length, attempt)).integers(text_tokens, size=length).tolist()
        for length in RAGGED_LENGTHS
    ]
