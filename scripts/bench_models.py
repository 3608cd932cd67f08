"""The two models that speed is measured on: Qwen3.5-shaped, by their config.json."""

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
}  # fmt: skip
