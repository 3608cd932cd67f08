"""config.json of published models with Mamba2 layers, without the fields that set no number here."""

from typing import Any

NANO: dict[str, Any] = {
    "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 2688, "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "max_position_embeddings": 262144, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 1856, "ssm_state_size": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
    "conv_kernel": 4, "chunk_size": 128, "expand": 2, "use_bias": False, "use_conv_bias": True,
    "mamba_proj_bias": False, "mamba_hidden_act": "silu", "mamba_ssm_cache_dtype": "float32", "time_step_floor": 0.0001,
    "time_step_max": 0.1, "time_step_min": 0.001, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
    "residual_in_fp32": False, "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rope_theta": 10000, "partial_rotary_factor": 1.0,
    "sliding_window": None, "mlp_hidden_act": "relu2", "mlp_bias": False, "attention_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip
SUPER: dict[str, Any] = NANO | {
    "hidden_size": 4096,
    "num_hidden_layers": 88,
    "hybrid_override_pattern": (
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    ),
    "intermediate_size": 2688, "mamba_num_heads": 128, "n_routed_experts": 512, "num_experts_per_tok": 22,
    "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024,
    "moe_shared_expert_overlap": False, "routed_scaling_factor": 5.0, "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid", "vocab_size": 100352, "hidden_size": 4096, "num_hidden_layers": 40,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 72,
    "num_experts_per_tok": 10, "intermediate_size": 768, "shared_intermediate_size": 1536, "mamba_n_heads": 128,
    "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_chunk_size": 256, "position_embedding_type": "nope", "rope_theta": 10000, "rope_scaling": None,
    "rms_norm_eps": 1e-5, "embedding_multiplier": 12, "attention_multiplier": 0.0078125, "residual_multiplier": 0.22,
    "logits_scaling": 16, "tie_word_embeddings": True, "normalization_function": "rmsnorm", "init_method": "mup",
}  # fmt: skip
FALCON: dict[str, Any] = {
    "model_type": "falcon_h1", "vocab_size": 261120, "hidden_size": 5120, "num_hidden_layers": 72,
    "max_position_embeddings": 262144, "intermediate_size": 21504, "num_attention_heads": 20, "num_key_value_heads": 4,
    "head_dim": 128, "mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_state": 256,
    "mamba_n_groups": 2, "mamba_rms_norm": False, "mamba_norm_before_gate": False, "mamba_use_mlp": True,
    "mlp_expansion_factor": 8, "rope_theta": 100000000000.0, "rope_scaling": None,
}  # fmt: skip
_ZAMBA2_CALLS = [6, 12, 18, 24, 30, 36, 42, 47, 51]
ZAMBA2: dict[str, Any] = {
    "model_type": "zamba2", "add_bias_linear": False, "adapter_rank": 128, "attention_head_dim": 160,
    "attention_hidden_size": 5120, "chunk_size": 256, "hidden_act": "gelu", "hidden_size": 2560,
    "hybrid_layer_ids": _ZAMBA2_CALLS, "intermediate_size": 10240, "kv_channels": 80,
    "layers_block_type": ["hybrid" if i in _ZAMBA2_CALLS else "mamba" for i in range(54)], "mamba_d_conv": 4,
    "mamba_d_state": 64, "mamba_expand": 2, "mamba_headdim": 64, "mamba_ngroups": 1, "max_position_embeddings": 4096,
    "n_mamba_heads": 80, "num_attention_heads": 32, "num_hidden_layers": 54, "num_key_value_heads": 32,
    "num_logits_to_keep": 1, "num_mem_blocks": 2, "num_query_groups": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000,
    "time_step_floor": 0.0001, "time_step_limit": None, "time_step_max": 0.1, "time_step_min": 0.001,
    "use_conv_bias": True, "use_long_context": False, "use_mamba_kernels": True, "use_mem_eff_path": False,
    "use_mem_rope": False, "use_shared_attention_adapter": False, "use_shared_mlp_adapter": True, "vocab_size": 32000,
}  # fmt: skip
"""Zamba2-2.7B."""
