"""Configurations of the benchmark models: two Qwen3.5 shapes, and one for each other mixer."""

from typing import Any

COMMON: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
    "full_attention_interval": 4,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "eos_token_id": 0,
    "pad_token_id": 0,
}

SMALL: dict[str, Any] = {
    "dtype": "bfloat16",
    "vocab_size": 32768,
    "hidden_size": 768,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "bos_token_id": 0,
}
FULL = [4, 8, 12]
BENCH_MODELS: dict[str, dict[str, Any]] = {
    # 131M parameters, 12 layers
    "131M": COMMON
    | {
        "vocab_size": 32768, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 12,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 128, "linear_num_key_heads": 8,
        "linear_num_value_heads": 8, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    },
    # 752M parameters, the dimensions of Qwen3.5-0.8B
    "752M": COMMON
    | {
        "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    },
    # 116M parameters, 24 layers of nothing but Mamba2, the dimensions of mamba2-130m
    "mamba2": SMALL
    | {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "num_hidden_layers": 24, "num_heads": 24,
        "head_dim": 64, "state_size": 128, "n_groups": 1, "expand": 2, "conv_kernel": 4, "chunk_size": 256,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    },
    # 138M parameters, 12 layers, every fourth of latent attention, no experts
    "kda": SMALL
    | {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "intermediate_size": 2048,
        "num_hidden_layers": 12, "first_k_dense_replace": 12, "num_attention_heads": 6, "num_key_value_heads": 6,
        "kv_lora_rank": 256, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "model_max_length": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "linear_attn_config": {
            "full_attn_layers": FULL, "kda_layers": [i for i in range(1, 13) if i not in FULL], "head_dim": 128,
            "num_heads": 6, "short_conv_kernel_size": 4,
        },
    },
    # 121M parameters, 12 layers, every third of attention
    "shortconv": SMALL
    | {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_key_value_heads": 4, "intermediate_size": 2560, "block_auto_adjust_ff_dim": False, "conv_L_cache": 3,
        "conv_bias": False, "norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 4096,
        "layer_types": ["conv", "conv", "full_attention"] * 4, "tie_word_embeddings": True,
    },
}  # fmt: skip
