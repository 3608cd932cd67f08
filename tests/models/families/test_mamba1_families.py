"""config.json of Mamba (S6) families: published models, defaults, and refused fields."""

from typing import Any

from published import read
from tiny_variants import variant

from hybridlm.families import AttentionConfig, Mamba1Config, MoeConfig
from models import family_of

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
    ((mixer,), *_) = read(variant("mamba_base").config | {"time_step_rank": "auto", "hidden_size": 40}).layers
    assert isinstance(mixer, Mamba1Config) and (mixer.rank, mixer.width) == (3, 80)


def test_experts_of_jamba_by_the_name_of_transformers() -> None:
    config = variant("jamba_base").config
    experts = config.pop("num_experts")
    assert read(config | {"num_local_experts": experts}) == read(config | {"num_experts": experts})
