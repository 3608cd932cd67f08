"""config.json of Kimi-Linear: both spellings of its fields, and refusals."""

import pytest
from published import KIMI, KIMI_FULL, read

from hybridlm.families import LatentAttentionConfig, MlpConfig, MoeConfig
from models import ConfigError

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


def test_published_and_saved_spellings_are_one_model() -> None:
    config = read(KIMI)
    assert config == read(SAVED)
    assert config.unknown_keys == () and config.max_position_embeddings == 1048576
    attention = [i + 1 for i, (mixer, _) in enumerate(config.layers) if isinstance(mixer, LatentAttentionConfig)]
    assert attention == KIMI_FULL
    assert [type(forward) for _, forward in config.layers] == [MlpConfig] + [MoeConfig] * 26
    moe = config.layers[1][1]
    assert isinstance(moe, MoeConfig) and moe.router.scale == 2.446 and moe.shared_width == 1024


def test_layer_types_are_required() -> None:
    with pytest.raises(ConfigError, match="layer_types: expected a list of 27 items"):
        read({name: value for name, value in SAVED.items() if name != "layer_types"})
