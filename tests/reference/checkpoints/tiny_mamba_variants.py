"""Tiny checkpoints of families with Mamba and Mamba2 layers: fields of `tiny_variants.Variant`, by variant.

Together they cover head size != state size, one group and several, convolution kernels 3 and 4 with and without bias,
one shared block and two, every kind of layer of Nemotron-H by each spelling of its pattern, chosen groups of experts,
and latent experts.
"""

from typing import Any

_COMMON: dict[str, Any] = {
    "vocab_size": 331, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
_MAMBA2 = _COMMON | {"num_heads": 8, "head_dim": 16, "state_size": 12, "n_groups": 2, "num_hidden_layers": 2}
_NEMOTRON = _COMMON | {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 96, "ssm_state_size": 12,
    "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2, "max_position_embeddings": 512,
    "layers_block_type": ["linear_attention", "mlp", "full_attention"],
}  # fmt: skip
_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 2.5,
}  # fmt: skip
_HYBRID = _COMMON | {
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4, "num_hidden_layers": 2,
}  # fmt: skip
_GRANITE = _HYBRID | {
    "layer_types": ["linear_attention", "full_attention"], "shared_intermediate_size": 48, "embedding_multiplier": 2.0,
    "logits_scaling": 1.5, "residual_multiplier": 0.7, "attention_multiplier": 0.25,
}  # fmt: skip

_MAMBA = _COMMON | {"state_size": 12, "conv_kernel": 4, "time_step_rank": 6, "num_hidden_layers": 2}
_JAMBA = _COMMON | {
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 3,
    "attn_layer_offset": 1, "mamba_d_state": 12, "mamba_d_conv": 4, "mamba_dt_rank": 6,
}  # fmt: skip

_ZAMBA2 = _COMMON | {
    "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_attention_heads": 4,
    "intermediate_size": 96, "adapter_rank": 6, "mamba_d_state": 12, "n_mamba_heads": 8, "mamba_ngroups": 2,
    "max_position_embeddings": 512, "use_shared_attention_adapter": True, "use_mem_rope": True,
    "tie_word_embeddings": True,
}  # fmt: skip

MAMBA_VARIANTS: dict[str, dict[str, Any]] = {
    "mamba_base": {"family": "mamba", "text": _MAMBA},
    "mamba_tied": {"family": "mamba", "text": _MAMBA | {
        "conv_kernel": 3, "use_conv_bias": False, "state_size": 20, "expand": 3, "time_step_rank": "auto",
        "tie_word_embeddings": True,
    }, "stored": "bfloat16", "shards": 2},
    "falcon_mamba_base": {"family": "falcon_mamba", "text": _MAMBA | {"mixer_rms_eps": 1e-5}},
    "jamba_base": {"family": "jamba", "text": _JAMBA},
    "jamba_dense": {"family": "jamba", "text": _JAMBA | {
        "num_experts": 1, "num_experts_per_tok": 1, "mamba_d_conv": 3, "mamba_conv_bias": False,
        "mamba_dt_rank": "auto", "tie_word_embeddings": True,
    }, "stored": "bfloat16"},
    "jamba_fused": {"family": "jamba", "text": _JAMBA | {
        "expert_layer_offset": 0, "num_experts_per_tok": 1,
    }, "fused_experts": True},
    "zamba2_base": {"family": "zamba2", "text": _ZAMBA2},
    "zamba2_blocks": {"family": "zamba2", "text": _ZAMBA2 | {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"],
        "num_mem_blocks": 2, "num_key_value_heads": 2, "mamba_ngroups": 1, "mamba_d_conv": 3,
        "use_shared_attention_adapter": False, "use_mem_rope": False,
    }, "stored": "bfloat16", "shards": 2, "rewritten": {"layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"]}},
    "mamba2_base": {"family": "mamba2", "text": _MAMBA2},
    "mamba2_one_group": {"family": "mamba2", "text": _MAMBA2 | {
        "n_groups": 1, "conv_kernel": 3, "use_conv_bias": False, "state_size": 20, "tie_word_embeddings": True,
    }, "stored": "bfloat16", "shards": 2},
    "nemotron_dense": {"family": "nemotron_h", "text": _NEMOTRON,
        "rewritten": {"hybrid_override_pattern": "M-*", "layers_block_type": None, "num_hidden_layers": 3}},
    "nemotron_experts": {"family": "nemotron_h", "text": _NEMOTRON | _EXPERTS | {
        "n_group": 4, "topk_group": 2,
        "layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "moe"],
    }, "shards": 2, "mtp": True},
    "nemotron_latent": {"family": "nemotron_h", "text": _NEMOTRON | _EXPERTS | {
        "moe_latent_size": 24, "norm_topk_prob": False, "routed_scaling_factor": 0.4, "conv_kernel": 3, "n_groups": 3,
        "layers_block_type": ["linear_attention", "moe", "full_attention"],
    }, "stored": "bfloat16"},
    "nemotron_fused": {"family": "nemotron_h", "text": _NEMOTRON | _EXPERTS | {
        "layers_block_type": ["moe", "linear_attention", "full_attention"],
    }, "fused_experts": True},
    "granite_experts": {"family": "granitemoehybrid", "text": _GRANITE | {
        "num_local_experts": 8, "num_experts_per_tok": 3,
    }},
    "granite_dense": {"family": "granitemoehybrid", "text": _GRANITE | {
        "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope", "mamba_n_groups": 1,
        "mamba_d_conv": 3, "mamba_conv_bias": False, "tie_word_embeddings": True, "embedding_multiplier": 0.9,
    }, "stored": "bfloat16", "shards": 2, "rewritten": {"layer_types": ["mamba", "attention"]}},
    "bamba_base": {"family": "bamba", "text": _HYBRID | {"attn_layer_indices": [1]}},
    "bamba_one_group": {"family": "bamba", "text": _HYBRID | {
        "attn_layer_indices": [0], "num_key_value_heads": 1, "mamba_n_groups": 1, "mamba_d_conv": 3, "mamba_expand": 1,
        "tie_word_embeddings": True,
    }, "stored": "bfloat16"},
    "falcon_base": {"family": "falcon_h1", "text": _HYBRID | {
        "mamba_d_ssm": 128, "embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "key_multiplier": 0.8,
        "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7, "mlp_multipliers": [0.8, 0.6], "ssm_multipliers": [0.7, 0.9, 1.1, 1.3, 0.8],
    }},
    "falcon_normed": {"family": "falcon_h1", "text": _HYBRID | {
        "mamba_d_ssm": 96, "mamba_rms_norm": True, "mamba_n_groups": 4, "mamba_d_conv": 3,
    }, "stored": "bfloat16", "shards": 2},
    "falcon_gated": {"family": "falcon_h1", "text": _HYBRID | {
        "mamba_d_ssm": 64, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
    }},
}  # fmt: skip
