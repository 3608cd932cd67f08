"""config.json of Mamba (S6) families: published models, defaults, and refused fields."""

from typing import Any

import pytest
from tiny_variants import variant

from models import DecoderConfig, family_of
from models.config.reader import ConfigError
from models.layers.moe import MoeConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba1 import Mamba1Config

FALCON: dict[str, Any] = {
    "model_type": "falcon_mamba", "architectures": ["FalconMambaForCausalLM"], "conv_kernel": 4, "expand": 16,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 8192, "layer_norm_epsilon": 1e-5,
    "num_hidden_layers": 64, "residual_in_fp32": True, "state_size": 16, "tie_word_embeddings": False,
    "time_step_rank": 256, "use_bias": False, "use_conv_bias": True, "vocab_size": 65024,
}  # fmt: skip
JAMBA: dict[str, Any] = {
    "model_type": "jamba", "architectures": ["JambaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 65536,
}  # fmt: skip
"""Sizes of Jamba 0.1; the rest are defaults of transformers."""


def read(config: dict[str, Any]) -> DecoderConfig:
    return family_of(config).read_config(config)


def tiny(name: str) -> dict[str, Any]:
    return {"model_type": variant(name).family, **variant(name).text}


def test_published_falcon_mamba() -> None:
    """64 layers of 8192 channels: 16 states of 4 bytes, 3 inputs of 2 bytes."""
    config = read(FALCON)
    assert set(config.layers) == {(Mamba1Config(8192, 16, 256, 4, norms="plain"),)} and not config.unknown_keys
    size = family_of(FALCON).abstract(config).state_size("bfloat16")
    assert (size.fixed, size.token) == (64 * 8192 * (16 * 4 + 3 * 2), 0)


def test_layers_of_published_jamba() -> None:
    layers = read(JAMBA).layers
    assert [i for i, (mixer, _) in enumerate(layers) if isinstance(mixer, AttentionConfig)] == [4, 12, 20, 28]
    assert [i for i, (_, forward) in enumerate(layers) if isinstance(forward, MoeConfig)] == list(range(1, 32, 2))
    (mamba,) = {mixer for mixer, _ in layers if isinstance(mixer, Mamba1Config)}
    assert (mamba.width, mamba.state_size, mamba.rank, mamba.norms) == (8192, 16, 256, "weighted")
    (attention,) = {mixer for mixer, _ in layers if isinstance(mixer, AttentionConfig)}
    assert (attention.kv_heads, attention.head_dim, attention.rope) == (8, 128, None)


def test_rank_of_the_time_step_by_default() -> None:
    ((mixer,), *_) = read(tiny("mamba_base") | {"time_step_rank": "auto", "hidden_size": 40}).layers
    assert isinstance(mixer, Mamba1Config) and (mixer.rank, mixer.width) == (3, 80)


def test_experts_of_jamba_by_the_name_of_transformers() -> None:
    config = tiny("jamba_base")
    experts = config.pop("num_experts")
    assert read(config | {"num_local_experts": experts}) == read(config | {"num_experts": experts})


@pytest.mark.parametrize(("name", "fields", "fault"), [
    ("mamba_base", {"use_bias": True}, "use_bias"),
    ("mamba_base", {"hidden_act": "gelu"}, "hidden_act"),
    ("mamba_base", {"rms_norm": False}, "rms_norm"),
    ("jamba_base", {"mamba_proj_bias": True}, "mamba_proj_bias"),
    ("jamba_base", {"attn_layer_offset": 3}, "attn_layer_offset"),
    ("jamba_base", {"expert_layer_offset": 2}, "expert_layer_offset"),
    ("jamba_base", {"num_experts_per_tok": 5}, "num_experts_per_tok"),
    ("jamba_base", {"sliding_window": 128}, "sliding_window"),
    ("jamba_base", {"num_local_experts": 8}, "num_local_experts"),
])  # fmt: skip
def test_faults_of_mamba_configs_are_named(name: str, fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tiny(name) | fields)
    assert [line.partition(":")[0] for line in raised.value.faults] == [fault]
