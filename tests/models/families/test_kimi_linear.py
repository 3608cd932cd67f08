"""config.json of Kimi-Linear: both spellings of its fields, and refusals."""

import re
from typing import Any

import pytest
from published import KIMI, KIMI_FULL

from models import DecoderConfig, family_of
from models.config.reader import ConfigError
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.mixers.latent_attention import LatentAttentionConfig

# The same as transformers saves it.
SAVED = {name: value for name, value in KIMI.items() if name not in ("linear_attn_config", "first_k_dense_replace")}
SAVED |= {
    "layer_types": ["full_attention" if i + 1 in KIMI_FULL else "linear_attention" for i in range(27)],
    "mlp_layer_types": ["dense"] + ["sparse"] * 26,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
    "qk_head_dim": 192,
}


def read(config: dict[str, Any]) -> DecoderConfig:
    return family_of(config).read_config(config)


def test_published_and_saved_spellings_are_one_model() -> None:
    config = read(KIMI)
    assert config == read(SAVED)
    assert config.unknown_keys == () and config.max_position_embeddings == 1048576
    attention = [i + 1 for i, (mixer, _) in enumerate(config.layers) if isinstance(mixer, LatentAttentionConfig)]
    assert attention == KIMI_FULL
    assert [type(forward) for _, forward in config.layers] == [MlpConfig] + [MoeConfig] * 26
    moe = config.layers[1][1]
    assert isinstance(moe, MoeConfig) and moe.router.scale == 2.446 and moe.shared_width == 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_lora_rank": 0}, "q_lora_rank: expected a whole number of at least 1"),
        ({"q_lora_rank": True}, "q_lora_rank: expected a whole number of at least 1"),
        ({"mla_use_nope": False}, "mla_use_nope: expected one of True"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func: expected one of 'sigmoid'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq: expected one of 1"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: expected one of False"),
        ({"num_key_value_heads": 8}, "num_key_value_heads: expected num_attention_heads (32)"),
        ({"num_expert_group": 7}, "num_expert_group: expected a divisor of the 256 experts"),
        ({"num_expert_group": 256}, "num_expert_group: expected a divisor of the 256 experts that leaves at least two"),
        ({"num_expert_group": 4, "topk_group": 5}, "topk_group: expected at most the 4 groups, found 5"),
        ({"num_expert_group": 128, "num_experts_per_token": 3}, "num_experts_per_token: expected at most the 2"),
        ({"layer_types": ["linear_attention"] * 26}, "layer_types: expected a list of 27 items"),
        ({"linear_attn_config": KIMI["linear_attn_config"] | {"kda_layers": [1, 2]}},
         "linear_attn_config.kda_layers: expected with full_attn_layers every layer from 1 to 27 once"),
        ({"linear_attn_config": KIMI["linear_attn_config"] | {"num_heads": 0}}, "linear_attn_config.num_heads"),
    ],
)  # fmt: skip
def test_unsupported_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(KIMI | change)


def test_layer_types_are_required() -> None:
    with pytest.raises(ConfigError, match="layer_types: expected a list of 27 items"):
        read({name: value for name, value in SAVED.items() if name != "layer_types"})
