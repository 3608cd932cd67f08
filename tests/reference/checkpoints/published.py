"""config.json of published models, without the fields that set no number here, and models of a config.json."""

from collections.abc import Mapping
from typing import Any

from published_mamba import FALCON, GRANITE, NANO, SUPER, ZAMBA2

from models import DecoderConfig, family_of

_ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
_QWEN = {
    "max_position_embeddings": 262144, "head_dim": 256, "hidden_act": "silu", "attention_bias": False,
    "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # fmt: skip
_QWEN3_5 = _QWEN | {
    "vocab_size": 248320, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False, "full_attention_interval": 4, "partial_rotary_factor": 0.25,
    "rope_parameters": _ROPE | {"mrope_section": [11, 11, 10], "mrope_interleaved": True},
}  # fmt: skip
_FOURTH = (["linear_attention"] * 3 + ["full_attention"]) * 16
_TEXT_35B: dict[str, Any] = _QWEN3_5 | {
    "hidden_size": 2048, "num_hidden_layers": 40, "layer_types": _FOURTH[:40], "num_attention_heads": 16,
    "num_key_value_heads": 2, "linear_num_value_heads": 32, "num_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip
QWEN3_5_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": _TEXT_35B,
    "vision_config": {},
    "tie_word_embeddings": False,
}
_TEXT_122B: dict[str, Any] = _TEXT_35B | {
    "hidden_size": 3072, "num_hidden_layers": 48, "layer_types": _FOURTH[:48], "num_attention_heads": 32,
    "linear_num_value_heads": 64, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
}  # fmt: skip
QWEN3_5_122B: dict[str, Any] = QWEN3_5_35B | {"text_config": _TEXT_122B}
_TEXT_27B: dict[str, Any] = _QWEN3_5 | {
    "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "layer_types": _FOURTH,
    "num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48,
}  # fmt: skip
QWEN3_5_27B: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": _TEXT_27B,
    "vision_config": {},
    "tie_word_embeddings": False,
}
_TEXT_08B: dict[str, Any] = _QWEN3_5 | {
    "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "layer_types": _FOURTH[:24],
    "num_attention_heads": 8, "num_key_value_heads": 2, "linear_num_value_heads": 16, "mlp_only_layers": [],
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_5_08B: dict[str, Any] = QWEN3_5_27B | {"text_config": _TEXT_08B, "tie_word_embeddings": True}
QWEN3_NEXT: dict[str, Any] = _QWEN | {
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 48, "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2,
    "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "rope_theta": 10000000, "partial_rotary_factor": 0.25, "rope_scaling": None, "use_sliding_window": False,
}  # fmt: skip
KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
"""Layers with attention, from 1."""
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear", "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216,
    "moe_intermediate_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
    "head_dim": 72, "hidden_act": "silu", "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "model_max_length": 1048576,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1, "topk_group": 1, "use_grouped_topk": True, "num_experts": 256, "num_experts_per_token": 8,
    "num_shared_experts": 1, "routed_scaling_factor": 2.446, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "rope_scaling": None, "num_nextn_predict_layers": 0, "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": KIMI_FULL,
        "kda_layers": [i for i in range(1, 28) if i not in KIMI_FULL],
        "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
LFM2: dict[str, Any] = {
    "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5,
    "rope_theta": 1000000.0, "conv_L_cache": 3, "conv_bias": False, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "block_ff_dim": 12288, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}  # fmt: skip
LFM2_MOE: dict[str, Any] = LFM2 | {
    "model_type": "lfm2_moe", "num_hidden_layers": 24,
    "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
    "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32,
    "num_experts_per_tok": 4, "norm_topk_prob": True, "use_expert_bias": True, "routed_scaling_factor": 1.0,
}  # fmt: skip
for _name in [name for name in LFM2_MOE if name.startswith(("block_", "full_"))]:
    del LFM2_MOE[_name]

LFM3: dict[str, Any] = {
    "model_type": "lfm3", "vocab_size": 128000, "hidden_size": 2048, "intermediate_size": 7680, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 128000,
    "norm_eps": 1e-5, "conv_L_cache": 7, "conv_bias": False, "attention_bias": False, "sliding_window": 256,
    "use_sandwich_norm": True, "use_attention_gate": True, "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
    },
}  # fmt: skip
LARA: dict[str, Any] = {
    "model_type": "lara_mini", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 34,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "attention_bias": False, "sliding_window": 512,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 8,
    "linear_num_value_heads": 16, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "num_experts": 128, "num_experts_per_tok": 4, "norm_topk_prob": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": True,
}  # fmt: skip

LING: dict[str, Any] = {
    "model_type": "bailing_hybrid", "vocab_size": 157184, "hidden_size": 2560, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "moe_shared_expert_intermediate_size": 768, "num_hidden_layers": 42,
    "num_attention_heads": 32, "num_key_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 8,
    "num_shared_experts": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
    "score_function": "sigmoid", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "router_dtype": "fp32",
    "moe_router_enable_expert_bias": True, "scale_router_input": False,
    "expert_swiglu_limit_list": [0.0] * 35 + [4.0] * 7, "first_k_dense_replace": 2,
    "share_expert_swiglu_limit_list": [0.0] * 34 + [5.0] * 6 + [7.0] * 2, "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "rope_theta": 6000000, "rope_interleave": True, "rope_scaling": None, "rotary_dim": 64,
    "partial_rotary_factor": 0.5, "gated_attention_proj_granularity_type": "head_wise", "use_mla_nope": False,
    "head_dim": 128, "short_conv_kernel_size": 4, "layer_group_size": 6, "group_norm_size": 1,
    "num_kv_heads_for_linear_attn": 0, "kda_safe_gate": True, "kda_lower_bound": -5.0, "no_kda_lora": True,
    "use_kda_lora": False, "linear_silu": True, "use_qk_norm": True, "use_bias": False, "use_qkv_bias": False,
    "use_nGPT": False, "up_proj_norm": False, "value_norm": False, "hidden_act": "silu",
    "num_nextn_predict_layers": 1, "mtp_loss_scaling_factor": 0, "mtp_use_kda": False, "embedding_dropout": 0.0,
    "output_dropout": 0.0, "seq_aux": True, "max_window_layers": 20, "tie_word_embeddings": False,
}  # fmt: skip
OLMO: dict[str, Any] = {
    "model_type": "olmo_hybrid", "vocab_size": 100352, "hidden_size": 3840, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 30, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6,
    "rope_parameters": None, "layer_types": _FOURTH[:32], "linear_num_key_heads": 30, "linear_num_value_heads": 30,
    "linear_key_head_dim": 96, "linear_value_head_dim": 192, "linear_conv_kernel_dim": 4,
    "linear_allow_neg_eigval": True, "tie_word_embeddings": False,
}  # fmt: skip
LING_2_6: dict[str, Any] = {
    "model_type": "bailing_hybrid", "architectures": ["BailingMoeV2_5ForCausalLM"], "vocab_size": 157184,
    "hidden_size": 4096, "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 256, "num_experts_per_tok": 8,
    "num_shared_experts": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "score_function": "sigmoid",
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "router_dtype": "fp32", "seq_aux": True,
    "moe_router_enable_expert_bias": True, "moe_router_enable_routed_scaling": True,
    "moe_router_enable_shared_expert": True, "first_k_dense_replace": 1, "max_position_embeddings": 131072,
    "max_window_layers": 20, "rms_norm_eps": 1e-6, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_theta": 6000000, "rope_interleave": True, "rope_scaling": None,
    "partial_rotary_factor": 0.5, "head_dim": 128, "layer_group_size": 8, "group_norm_size": 4, "linear_silu": False,
    "use_qk_norm": True, "use_bias": False, "use_qkv_bias": False, "hidden_act": "silu",
    "num_nextn_predict_layers": 1, "mtp_loss_scaling_factor": 0, "embedding_dropout": 0.0, "output_dropout": 0.0,
    "tie_word_embeddings": False,
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_text_01", "architectures": ["MiniMaxText01ForCausalLM"], "vocab_size": 200064,
    "hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80, "attn_type_list": ([0] * 7 + [1]) * 10,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 32,
    "num_experts_per_tok": 2, "max_position_embeddings": 10240000, "rms_norm_eps": 1e-5, "rope_theta": 10000000,
    "rotary_dim": 64, "hidden_act": "silu", "postnorm": True, "layernorm_full_attention_alpha": 3.5565588200778455,
    "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_alpha": 3.5565588200778455,
    "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_alpha": 3.5565588200778455, "layernorm_mlp_beta": 1.0,
    "router_jitter_noise": 0.0, "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "sliding_window": None,
    "tie_word_embeddings": False,
}  # fmt: skip

QWEN4_EXP: dict[str, Any] = {
    "model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"], "image_token_id": 248056,
    "video_token_id": 248057, "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen4_exp_text", "vocab_size": 248320, "eos_token_id": 248044, "hidden_size": 2560,
        "num_hidden_layers": 48, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
        "full_attention_interval": 4, "max_position_embeddings": 262144, "num_attention_heads": 24,
        "num_key_value_heads": 2, "head_dim": 256, "attention_bias": False, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "output_gate_type": "sigmoid", "mamba_ssm_dtype": "float32", "linear_num_key_heads": 16,
        "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640, "hc_count": 4, "hc_lowrank": 320, "indexer_n_heads": 4,
        "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4,
        "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10], "mrope_interleaved": True,
        },
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "mtp": {"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 10000000},
    },
}  # fmt: skip
"""Qwen3.8-Flash-Next, as other implementations repeat the file in their tests."""
GIGACHAT: dict[str, Any] = {
    "model_type": "gigachat3_5", "architectures": ["GigaChat35ForCausalLM"], "vocab_size": 128256, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 40,
    "full_attention_layers": list(range(3, 40, 4)), "num_attention_heads": 64, "num_key_value_heads": 64,
    "head_dim": 64, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
    "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "first_k_dense_replace": 3, "aux_loss_alpha": 0.0001, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
    "optimizer_eps": 1e-20, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "rope_theta": 100000.0, "rope_interleave": True,
    "rope_scaling": {
        "type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32768, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
    "attention_type": "LlamaLatentAttention", "num_krope_heads": 1, "attention_bias": False,
    "attention_distillation": False, "gated_attention": True, "use_mla_scaling_factor": True,
    "use_shared_expert_sigmoid": False, "norm_type": "ZeroCenteredGatedNorm", "layernorm_type": "pre_post",
    "layernorm_gating_weight": 2.0, "linear_attention_type": "Qwen3NextGatedDeltaNet", "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "linear_num_key_heads": 32, "linear_num_value_heads": 64,
    "linear_use_short_conv": True, "linear_gating_type": "gated_rmsnorm_sigmoid_zero_centered",
    "linear_sigmoid_gate_scale": 2.0, "linear_attn_o_norm_eps": None, "linear_use_legacy_qkvz_layout": False,
    "swiglu_limit": 10.0, "hidden_act": "silu", "num_nextn_predict_layers": 3, "nextn_is_sparse": False,
    "pretraining_tp": 1, "tie_word_embeddings": False,
}  # fmt: skip
"""From the config class for vLLM, with layers and context of the checkpoint."""
ALICE: dict[str, Any] = {
    "model_type": "alice_ai", "architectures": ["AliceAIForCausalLM"], "vocab_size": 129024, "hidden_size": 2048,
    "intermediate_size": 5632, "num_hidden_layers": 48, "layer_types": _FOURTH[:48], "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu", "attention_bias": False,
    "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "partial_rotary_factor": 0.25,
    "rope_scaling": None, "linear_conv_kernel_dim": 4, "linear_num_key_heads": 32, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "block_attn_res_block_size": 4,
    "kda_allow_negative_eigenvalues": False, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "norm_topk_prob": True,
    "router_score_function": "sigmoid", "router_bias_correction": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1, "number_of_conv_states": 3, "tie_word_embeddings": False,
}  # fmt: skip
"""From the config class for vLLM and the numbers of layers and experts that its authors give."""

PUBLISHED = {
    "Qwen3.5-35B-A3B": QWEN3_5_35B, "Qwen3.5-0.8B": QWEN3_5_08B, "Qwen3.5-27B": QWEN3_5_27B,
    "Qwen3.5-122B-A10B": QWEN3_5_122B, "Qwen3-Next-80B": QWEN3_NEXT, "Nemotron-3-Nano": NANO,
    "Qwen3.8-Flash-Next": QWEN4_EXP,
    "Nemotron-3-Super": SUPER, "Kimi-Linear-48B": KIMI, "Ling-3.0-Flash": LING, "Ling-2.6-Flash": LING_2_6,
    "MiniMax-Text-01": MINIMAX, "GigaChat3.5-432B": GIGACHAT, "AliceAI-80B": ALICE,
    "OLMo-Hybrid-7B": OLMO, "LFM2-1.2B": LFM2, "LFM2-8B": LFM2_MOE, "LFM3-1.7B": LFM3,
    "Lara-4-Mini": LARA, "Granite-4.0-H-Small": GRANITE, "Falcon-H1-34B": FALCON, "Zamba2-2.7B": ZAMBA2,
}  # fmt: skip
"""Configurations by the name of the model."""


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """Return the model that a config.json describes."""
    return family_of(config).read_config(config)
