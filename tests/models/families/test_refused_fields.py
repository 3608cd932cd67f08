"""Fields of config.json that are refused: values of no type, out of range, or in contradiction to others."""

import json
import math
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from published import ALICE, GIGACHAT, KIMI, LARA, LFM2, LFM2_MOE, LFM3, LING, LING_2_6, MINIMAX, OLMO, PUBLISHED
from tiny_variants import variant

from hybridlm.families import ConfigReader
from models import ConfigError, family_of

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
CONFIGS = {
    **{path.parent.name: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*/config.json"))},
    **PUBLISHED,
}
READS = ("choice", "integer", "number", "flag")
"""Methods that refuse a value which is not implemented, or of another type."""

NO_EFFECT = {"Ling-2.6-Flash": {"num_key_value_heads"}}


def faults_of(config: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        family_of(config).read_config(config)
    return raised.value.faults


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Places of the fields that a family reads by one of these methods."""
    result: list[str] = []

    def recorded(read: Any) -> Any:
        def method(reader: ConfigReader, name: str, *args: Any, **named: Any) -> Any:
            result.append(f"{reader._where}{name}")
            return read(reader, name, *args, **named)

        return method

    for read in READS:
        monkeypatch.setattr(ConfigReader, read, recorded(getattr(ConfigReader, read)))
    return result


@pytest.mark.parametrize("name", CONFIGS)
def test_a_value_of_no_type_is_refused_in_each_field(name: str, places: list[str]) -> None:
    """Fields that are not read are unknown ones, and other tests find none in these files."""
    config = CONFIGS[name]
    family_of(config).read_config(config)
    for place in dict.fromkeys(places).keys() - NO_EFFECT.get(name, set()):
        changed = json.loads(json.dumps(config))
        *outer, last = place.split(".")
        reduce(lambda fields, key: fields.setdefault(key, {}), outer, changed)[last] = {"of no type": 1}
        assert any(fault.startswith(f"{place}: expected ") for fault in faults_of(changed)), place
    assert len(places) > 10


@pytest.mark.parametrize(("base", "change", "message"), [
    (LING, {"kda_lower_bound": 0.0}, "kda_lower_bound: expected a negative number"),
    (LING, {"partial_rotary_factor": 0.25}, "partial_rotary_factor: expected qk_rope_head_dim (64) of the"),
    (LING, {"num_hidden_layers": 44}, "layer_group_size: expected a divisor of num_hidden_layers (44)"),
    (LING, {"topk_group": 9}, "topk_group: expected at most the 8 groups"),
    (LING, {"expert_swiglu_limit_list": [4.0]}, "expert_swiglu_limit_list: expected a list of 42 numbers"),
    (LING, {"share_expert_swiglu_limit_list": [0.0] * 44},
     "share_expert_swiglu_limit_list: expected a list of 43 numbers"),
    (LING, {"expert_swiglu_limit_list": [-4.0] * 42},
     "expert_swiglu_limit_list: expected numbers that are not negative"),
    (LING, {"expert_swiglu_limit_list": [4.0] * 42},
     "expert_swiglu_limit_list: expected 0 in layers without experts, not 4.0 in layer 0, 4.0 in layer 1, found [4.0"),
    (LING, {"share_expert_swiglu_limit_list": [0.0, 2.5, *[0.0] * 40]},
     "share_expert_swiglu_limit_list: expected 0 in layers without experts, not 2.5 in layer 1, found [0.0, 2.5, "),
    (LING, {"mlp_layer_types": ["dense"]}, "mlp_layer_types: expected a list of 42 items"),
    (GIGACHAT, {"swiglu_limit": -1.0}, "swiglu_limit: expected a number greater than 0"),
    (GIGACHAT, {"full_attention_layers": [40]}, "full_attention_layers: expected numbers of layers, from 0 to 39"),
    (GIGACHAT, {"layer_types": ["full_attention"] * 40}, "layer_types: expected attention in the layers of"),
    (GIGACHAT, {"linear_num_value_heads": 48}, "linear_num_value_heads: expected a multiple of"),
    (GIGACHAT, {"num_key_value_heads": 8}, "num_key_value_heads: expected num_attention_heads (64)"),
    (GIGACHAT, {"n_group": 3}, "n_group: expected a divisor of the 256 experts"),
    (GIGACHAT, {"lm_head_logit_softcapping": 30.0}, "lm_head_logit_softcapping: expected one of None"),
    (ALICE, {"linear_num_value_heads": 16}, "linear_num_value_heads: expected 32, as of the keys"),
    (ALICE, {"linear_value_head_dim": 64}, "linear_value_head_dim: expected 128, as of the keys"),
    (ALICE, {"num_experts_per_tok": 513}, "num_experts_per_tok: expected at most num_experts (512)"),
    (KIMI, {"num_key_value_heads": 8}, "num_key_value_heads: expected num_attention_heads (32)"),
    (KIMI, {"num_expert_group": 7}, "num_expert_group: expected a divisor of the 256 experts"),
    (KIMI, {"num_expert_group": 256}, "num_expert_group: expected a divisor of the 256 experts that leaves"),
    (KIMI, {"num_expert_group": 4, "topk_group": 5}, "topk_group: expected at most the 4 groups, found 5"),
    (KIMI, {"num_expert_group": 128, "num_experts_per_token": 3}, "num_experts_per_token: expected at most the 2"),
    (KIMI, {"layer_types": ["linear_attention"] * 26}, "layer_types: expected a list of 27 items"),
    (KIMI, {"linear_attn_config": KIMI["linear_attn_config"] | {"kda_layers": [1, 2]}},
     "linear_attn_config.kda_layers: expected with"),
    (KIMI, {"linear_attn_config": KIMI["linear_attn_config"] | {"num_heads": 0}}, "linear_attn_config.num_heads: "),
    (LFM2, {"conv_L_cache": 1}, "conv_L_cache: expected a whole number of at least 2, found 1"),
    (LFM2, {"block_use_swiglu": False}, "block_use_swiglu: expected one of True"),
    (LFM2, {"use_pos_enc": False}, "use_pos_enc: expected one of True"),
    (LFM2, {"full_attn_idxs": [16]}, "full_attn_idxs: expected indices of the 16 layers, found [16]"),
    (LFM2, {"layer_types": ["conv"] * 15}, "layer_types: expected a list of 16 items"),
    (LFM2, {"layer_types": ["mamba"] * 16}, "layer_types: expected a list of 16 items, each one of"),
    (LFM2, {"num_attention_heads": 30, "num_key_value_heads": 10}, "num_attention_heads: expected a divisor of hidden"),
    (MINIMAX, {"postnorm": None}, "postnorm: expected true, a residual stream after the norms"),
    (MINIMAX, {"attn_type_list": [0, 1]}, "attn_type_list: expected a list of 80 numbers"),
    (MINIMAX, {"attn_type_list": [2] * 80}, "attn_type_list: expected a list of 80 numbers"),
    (MINIMAX, {"shared_intermediate_size": [0, 8]}, "shared_intermediate_size: expected 0 or zeros"),
    (MINIMAX, {"rotary_dim": 63}, "rotary_dim: expected an even number of the 128 values of a head"),
    (MINIMAX, {"rotary_dim": 256}, "rotary_dim: expected an even number of the 128 values of a head"),
    (MINIMAX, {"num_attention_heads": 48}, "num_attention_heads: expected a power of two"),
    (MINIMAX, {"num_experts_per_tok": 33}, "num_experts_per_tok: expected at most num_local_experts (32)"),
    ("minimax_base", {"layer_types": ["conv"] * 3}, "layer_types: expected a list of 3 items"),
    ("minimax_base", {"mlp_alpha_factor": 0}, "mlp_alpha_factor: expected a number greater than 0"),
    (LING_2_6, {"group_norm_size": 5}, "group_norm_size: expected a divisor of num_attention_heads (32)"),
    (LING_2_6, {"partial_rotary_factor": 1.0}, "partial_rotary_factor: expected qk_rope_head_dim (64)"),
    ("mamba_base", {"rms_norm": False}, "rms_norm: "),
    ("jamba_base", {"attn_layer_offset": 3}, "attn_layer_offset: "),
    ("jamba_base", {"expert_layer_offset": 2}, "expert_layer_offset: "),
    ("jamba_base", {"num_experts_per_tok": 5}, "num_experts_per_tok: "),
    ("jamba_base", {"sliding_window": 128}, "sliding_window: "),
    ("jamba_base", {"num_local_experts": 8}, "num_local_experts: "),
    ("mamba2_base", {"n_groups": 3}, "n_groups: expected a divisor of num_heads (8), found 3"),
    ("mamba2_base", {"head_dim": 15}, "num_heads: expected as many heads of size 15 as make the inner width 128"),
    ("mamba2_base", {"time_step_limit": [0.5, 0.1]}, "time_step_limit: expected two numbers"),
    ("mamba2_base", {"time_step_limit": [0.0, "Infinity"]}, "time_step_limit: expected two numbers"),
    ("nemotron_dense", {"layers_block_type": ["mamba", "rwkv"]}, "layers_block_type: expected letters M"),
    ("nemotron_dense", {"num_hidden_layers": 4}, "num_hidden_layers: expected the number of layers in"),
    ("nemotron_experts", {"n_group": 3}, "n_group: expected a divisor of the 8 experts"),
    ("nemotron_experts", {"n_group": 8}, "n_group: expected a divisor of the 8 experts"),
    ("nemotron_experts", {"topk_group": 5}, "topk_group: expected at most the 4 groups, found 5"),
    ("nemotron_experts", {"num_experts_per_tok": 5}, "num_experts_per_tok: expected at most the 4 experts"),
    ("granite_experts", {"num_experts_per_tok": 9}, "num_experts_per_tok: expected at least 1 and at most"),
    ("granite_experts", {"mamba_n_heads": 7}, "mamba_n_heads: expected as many heads"),
    ("bamba_base", {"attn_layer_indices": [2]}, "attn_layer_indices: expected indices of the 2 layers"),
    ("bamba_base", {"attn_rotary_emb": 16}, "attn_rotary_emb: expected one of 8"),
    ("falcon_base", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers: expected a list of 5 numbers"),
    ("falcon_base", {"mlp_multipliers": [1.0, math.inf]}, "mlp_multipliers: expected a list of 2 numbers"),
    ("nemotron_dense", {"mamba_n_groups": 3}, "n_groups: expected 3, as of mamba_n_groups, another"),
    ("nemotron_experts", {"num_local_experts": 9}, "num_local_experts: expected 8, as of n_routed_experts"),
    ("bamba_base", {"partial_rotary_factor": 1.0}, "partial_rotary_factor: expected one of 0.5"),
    ("granite_experts", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, as granitemoehybrid"),
    ("falcon_base", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor: "),
    (OLMO, {"layer_types": None}, "layer_types: expected a list of 32 items"),
    (OLMO, {"linear_num_value_heads": 31}, "linear_num_value_heads: expected a multiple of linear_num_key_heads"),
    (OLMO, {"linear_allow_neg_eigval": 2}, "linear_allow_neg_eigval: expected true or false"),
    ("indexed_base", {"layer_types": ["sliding_attention"] * 3}, "layer_types: expected a list of 3 items"),
    ("indexed_base", {"hc_count": 1}, "hc_count: expected a whole number of at least 2"),
    ("indexed_base", {"indexer_kv_heads": None}, "indexer_kv_heads: expected 1, found None"),
    ("indexed_base", {"indexer_compress_ratio": 3}, "indexer_compress_ratio: expected a divisor of 128"),
    ("indexed_base", {"indexer_budget": 7}, "indexer_budget: expected a multiple of indexer_compress_ratio (4)"),
    ("indexed_base", {"indexer_head_dim": 2}, "indexer_head_dim: expected at least the 4 rotated"),
    ("indexed_base", {"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most num_experts (8)"),
    ("indexed_base", {"linear_num_value_heads": 3}, "linear_num_value_heads: expected a multiple of"),
    ("indexed_base", {"ple_layer_ids": [2]}, "ple_layer_ids: expected layers of linear_attention"),
    ("indexed_base", {"ple_layer_ids": [0]}, "ple_layer_ids: expected numbers of layers, 1 to 3"),
    ("indexed_base", {"ple_layer_ids": [4]}, "ple_layer_ids: expected numbers of layers, 1 to 3"),
    ("indexed_base", {"ple_embed_dim": 20}, "ple_embed_dim: expected a multiple of the 8 tables of a layer"),
    ("indexed_base", {"ngram_size": 1}, "ngram_size: expected a whole number of at least 2"),
    ("indexed_base", {"ngram_size": 9}, "ngram_size: expected at most 8"),
    ("indexed_base", {"heads_per_ngram": 257}, "heads_per_ngram: expected at most 256"),
    ("indexed_base", {"ngram_vocab_size_base": 1 << 28}, "ngram_vocab_size_base: expected at most 134217728"),
    ("indexed_base", {"ngram_vocab_size_base": 1 << 27, "heads_per_ngram": 16},
     "ngram_vocab_size_base: expected tables with fewer than"),
    ("indexed_base", {"eos_token_id": None}, "eos_token_id: expected a token below vocab_size (331)"),
    ("indexed_base", {"eos_token_id": 331}, "eos_token_id: expected a token below vocab_size (331)"),
    (LFM3, {"head_dim": 63}, "head_dim: expected an even number, for rotated pairs, found 63"),
    (LFM3, {"layer_types": ["chunked_attention"] * 24}, "layer_types: expected a list of 24 items"),
    (LFM3, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling: expected one of {}"),
    (LFM3, {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters.full_attention: expected an object"),
    (LFM3, {"rope_parameters": LFM3["rope_parameters"] | {"full_attention": {"partial_rotary_factor": 1.5}}},
     "rope_parameters.full_attention.partial_rotary_factor: expected a share of the head"),
    (LFM3, {"rms_norm_eps": 1e-6}, "rms_norm_eps: expected 1e-05, as of norm_eps, another spelling, found 1e-06"),
    (LARA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, as lara_mini rotates whole heads"),
    (LARA, {"num_experts_per_tok": 129}, "num_experts_per_tok: expected at most num_experts (128)"),
    (LARA, {"linear_num_value_heads": 12}, "linear_num_value_heads: expected a multiple of linear_num_key_heads"),
    ("zamba2_blocks", {"use_shared_attention_adapter": True}, "num_key_value_heads: "),
    ("zamba2_blocks", {"num_key_value_heads": 3}, "num_key_value_heads: "),
    ("zamba2_blocks", {"mamba_headdim": 24}, "n_mamba_heads: "),
    ("zamba2_blocks", {"layers_block_type": ["mamba", "attention", "hybrid", "hybrid"]}, "layers_block_type: "),
    ("zamba2_blocks", {"num_mem_blocks": 0}, "num_mem_blocks: "),
    (LFM2_MOE, {"num_experts": 3}, "num_experts_per_tok: expected at most num_experts (3)"),
])  # fmt: skip
def test_values_that_do_not_fit_are_refused(base: Any, change: dict[str, Any], message: str) -> None:
    config = variant(base).config if isinstance(base, str) else base
    assert any(fault.startswith(message) for fault in faults_of(config | change))
