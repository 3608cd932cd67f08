"""The configs of published checkpoints give the layers and the state of the models they belong to."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models import family_of
from models.attention import AttentionConfig
from models.gated_delta_net import GatedDeltaNetConfig
from models.rope import Rope

ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
PUBLISHED = {
    "max_position_embeddings": 262144,
    "head_dim": 256,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
QWEN3_5 = PUBLISHED | {
    "vocab_size": 248320,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": ROPE | {"mrope_section": [11, 11, 10], "mrope_interleaved": True},
}


def published(name: str) -> dict[str, Any]:
    types = (["linear_attention"] * 3 + ["full_attention"]) * 16
    if name == "Qwen3.5-35B-A3B":
        text = QWEN3_5 | {
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "layer_types": types[:40],
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 32,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        }
        return {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {}, "tie_word_embeddings": False}
    if name == "Qwen3.5-27B":
        text = QWEN3_5 | {
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_hidden_layers": 64,
            "layer_types": types,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "linear_num_value_heads": 48,
        }
        return {"model_type": "qwen3_5", "text_config": text, "vision_config": {}, "tie_word_embeddings": False}
    return PUBLISHED | {
        "model_type": "qwen3_next",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 48,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "rope_scaling": None,
        "use_sliding_window": False,
    }


def total_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "layers", "channels", "recurrent", "sequence", "token"),
    [
        ("Qwen3.5-35B-A3B", (30, 10), 8192, 2 * MIB, 64_389_120, 20_480),
        ("Qwen3-Next-80B", (36, 12), 8192, 2 * MIB, 77_266_944, 24_576),
        ("Qwen3.5-27B", (48, 16), 10240, 3 * MIB, 153_944_064, 65_536),
    ],
)
def test_state_of_published_models(
    name: str, layers: tuple[int, int], channels: int, recurrent: int, sequence: int, token: int
) -> None:
    """Channels of the convolution, bytes of one layer's recurrence, of a sequence's fixed state, and of a token."""
    family = family_of(published(name))
    config = family.read_config(published(name))
    assert config.unknown_keys == () and config.eps == 1e-6 and not config.tied
    mixers = [mixer for mixer, _ in config.layers if isinstance(mixer, GatedDeltaNetConfig)]
    attentions = [mixer for mixer, _ in config.layers if isinstance(mixer, AttentionConfig)]
    assert (len(mixers), len(attentions)) == layers
    assert {mixer.channels for mixer in mixers} == {channels}
    assert {mixer.rope for mixer in attentions} == {Rope(64, 1e7)}

    # Four layers stand for all: building every layer takes long, even without its arrays.
    assert config.layers == config.layers[:4] * layers[1]
    few = dataclasses.replace(config, layers=config.layers[:4])
    model = nnx.eval_shape(lambda: family.build(few, nnx.Rngs(0)))

    def state(context: int) -> tuple[list[Any], list[Any]]:
        """Of the recurrent layers, and of the attention layers."""
        per_layer = jax.eval_shape(lambda: model.init_state(1, context, jnp.bfloat16))
        assert all(feed_forward is None for _, feed_forward in per_layer)
        assert len(per_layer) == 4
        return [layer[0] for layer in per_layer[:3]], [per_layer[3][0]]

    fixed, cache = state(512)
    assert {total_bytes(s.recurrent) for s in fixed} == {recurrent}
    assert {s.conv.shape for s in fixed} == {(1, 3, channels)}
    assert total_bytes(fixed) * layers[1] == sequence
    longer, longer_cache = state(1024)
    assert total_bytes(longer) == total_bytes(fixed)
    assert (total_bytes(longer_cache) - total_bytes(cache)) * layers[1] == 512 * token
