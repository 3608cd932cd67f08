"""Published configs give their models' layers and a sequence's state size."""

import functools
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx
from published import PUBLISHED, QWEN3_5_35B

from models import DecoderConfig, Devices, ShardingError, family_of
from models.config.reader import ConfigError
from models.layers.moe import MoeConfig
from models.layers.rope import Rope
from models.mixers.attention import AttentionConfig
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.state.state import StateSize, state_size


def read(name: str) -> DecoderConfig:
    return family_of(PUBLISHED[name]).read_config(PUBLISHED[name])


def size_of(config: DecoderConfig) -> StateSize:
    """Return the whole model's state size; each kind of layer is built once."""

    @functools.cache
    def built(layer: Any) -> Any:
        return nnx.eval_shape(lambda: layer.build(config.hidden_size, nnx.Rngs(0)))

    return state_size([built(layer) for branches in config.layers for layer in branches], jnp.bfloat16)


def attention(count: int, heads: int, size: int) -> list[str]:
    total = f"{heads * size * 2:,} B per token"
    return [f"{count} x Attention {part}: kv_head*{part}*2 B = {heads}*{size}*2 B = {total}" for part in KV]


KV = ("key", "value")
# Layers, channels of the convolution, heads and their sizes, bytes: worked out by hand.
EXPECTED: dict[str, tuple[list[str], int, int]] = {
    "Qwen3.5-35B-A3B": (
        [
            "30 x GatedDeltaNet conv: tap*channel*2 B = 3*8192*2 B = 49,152 B",
            "30 x GatedDeltaNet recurrent: value_head*value*key*4 B = 32*128*128*4 B = 2,097,152 B",
            *attention(10, 2, 256),
        ],
        64_389_120,
        20_480,
    ),
    "Qwen3.5-0.8B": (
        [
            "18 x GatedDeltaNet conv: tap*channel*2 B = 3*6144*2 B = 36,864 B",
            "18 x GatedDeltaNet recurrent: value_head*value*key*4 B = 16*128*128*4 B = 1,048,576 B",
            *attention(6, 2, 256),
        ],
        19_537_920,
        12_288,
    ),
    "Qwen3-Next-80B": (
        [
            "36 x GatedDeltaNet conv: tap*channel*2 B = 3*8192*2 B = 49,152 B",
            "36 x GatedDeltaNet recurrent: value_head*value*key*4 B = 32*128*128*4 B = 2,097,152 B",
            *attention(12, 2, 256),
        ],
        77_266_944,
        24_576,
    ),
    "Qwen3.8-Flash-Next": (
        [
            "36 x GatedDeltaNet conv: tap*channel*2 B = 3*10240*2 B = 61,440 B",
            "36 x GatedDeltaNet recurrent: value_head*value*key*4 B = 48*128*128*4 B = 3,145,728 B",
            "1 x NgramEmbedding tokens: tap*4 B = 2*4 B = 8 B",
            "1 x NgramEmbedding ngram_conv: tap*channel*2 B = 9*10240*2 B = 184,320 B",
            "12 x IndexedAttention key: kv_head*key*2 B = 2*256*2 B = 1,024 B per token",
            "12 x IndexedAttention value: kv_head*value*2 B = 2*256*2 B = 1,024 B per token",
            "12 x IndexedAttention index: kv_head*key*2 B = 1*128*2 B = 256 B per token",
        ],
        115_642_376,
        27_648,
    ),
    "Qwen3.5-27B": (
        [
            "48 x GatedDeltaNet conv: tap*channel*2 B = 3*10240*2 B = 61,440 B",
            "48 x GatedDeltaNet recurrent: value_head*value*key*4 B = 48*128*128*4 B = 3,145,728 B",
            *attention(16, 4, 256),
        ],
        153_944_064,
        65_536,
    ),
    "Qwen3.5-122B-A10B": (
        [
            "36 x GatedDeltaNet conv: tap*channel*2 B = 3*12288*2 B = 73,728 B",
            "36 x GatedDeltaNet recurrent: value_head*value*key*4 B = 64*128*128*4 B = 4,194,304 B",
            *attention(12, 2, 256),
        ],
        153_649_152,
        24_576,
    ),
    "Nemotron-3-Nano": (
        [
            "23 x Mamba2 conv: tap*channel*2 B = 3*6144*2 B = 36,864 B",
            "23 x Mamba2 recurrent: value_head*value*key*4 B = 64*64*128*4 B = 2,097,152 B",
            *attention(6, 2, 128),
        ],
        49_082_368,
        6_144,
    ),
    "Nemotron-3-Super": (
        [
            "40 x Mamba2 conv: tap*channel*2 B = 3*10240*2 B = 61,440 B",
            "40 x Mamba2 recurrent: value_head*value*key*4 B = 128*64*128*4 B = 4,194,304 B",
            *attention(8, 2, 128),
        ],
        170_229_760,
        8_192,
    ),
    "Kimi-Linear-48B": (
        [
            "20 x KimiDeltaAttention conv: tap*channel*2 B = 3*12288*2 B = 73,728 B",
            "20 x KimiDeltaAttention recurrent: value_head*value*key*4 B = 32*128*128*4 B = 2,097,152 B",
            "7 x LatentAttention key: kv_head*key*2 B = 1*576*2 B = 1,152 B per token",
        ],
        43_417_600,
        8_064,
    ),
    "Ling-3.0-Flash": (
        [
            "35 x KimiDeltaAttention conv: tap*channel*2 B = 3*12288*2 B = 73,728 B",
            "35 x KimiDeltaAttention recurrent: value_head*value*key*4 B = 32*128*128*4 B = 2,097,152 B",
            "7 x LatentAttention key: kv_head*key*2 B = 1*576*2 B = 1,152 B per token",
        ],
        75_980_800,
        8_064,
    ),
    "Ling-2.6-Flash": (
        [
            "28 x LightningAttention recurrent: value_head*value*key*4 B = 32*128*128*4 B = 2,097,152 B",
            "4 x LatentAttention key: kv_head*key*2 B = 1*576*2 B = 1,152 B per token",
        ],
        58_720_256,
        4_608,
    ),
    "MiniMax-Text-01": (
        [
            "70 x LightningAttention recurrent: value_head*value*key*4 B = 64*128*128*4 B = 4,194,304 B",
            *attention(10, 8, 128),
        ],
        293_601_280,
        40_960,
    ),
    "GigaChat3.5-432B": (
        [
            "30 x GatedDeltaNet conv: tap*channel*2 B = 3*16384*2 B = 98,304 B",
            "30 x GatedDeltaNet recurrent: value_head*value*key*4 B = 64*128*128*4 B = 4,194,304 B",
            "10 x LatentAttention key: kv_head*key*2 B = 1*576*2 B = 1,152 B per token",
        ],
        128_778_240,
        11_520,
    ),
    "AliceAI-80B": (
        [
            "36 x KimiDeltaAttention conv: tap*channel*2 B = 3*12288*2 B = 73,728 B",
            "36 x KimiDeltaAttention recurrent: value_head*value*key*4 B = 32*128*128*4 B = 2,097,152 B",
            *attention(12, 2, 256),
        ],
        78_151_680,
        24_576,
    ),
    "OLMo-Hybrid-7B": (
        [
            "24 x GatedDeltaNet conv: tap*channel*2 B = 3*11520*2 B = 69,120 B",
            "24 x GatedDeltaNet recurrent: value_head*value*key*4 B = 30*192*96*4 B = 2,211,840 B",
            *attention(8, 30, 128),
        ],
        54_743_040,
        122_880,
    ),
    "LFM2-1.2B": (
        ["10 x GatedShortConv conv: tap*channel*2 B = 2*2048*2 B = 8,192 B", *attention(6, 8, 64)],
        81_920,
        12_288,
    ),
    "LFM2-8B": (
        ["18 x GatedShortConv conv: tap*channel*2 B = 2*2048*2 B = 8,192 B", *attention(6, 8, 64)],
        147_456,
        12_288,
    ),
    "LFM3-1.7B": (
        ["13 x GatedShortConv conv: tap*channel*2 B = 6*2048*2 B = 24,576 B", *attention(11, 4, 128)],
        319_488,
        22_528,
    ),
    "Lara-4-Mini": (
        [
            "14 x GatedDeltaNet conv: tap*channel*2 B = 3*4096*2 B = 24,576 B",
            "14 x GatedDeltaNet recurrent: value_head*value*key*4 B = 16*128*128*4 B = 1,048,576 B",
            *attention(20, 4, 128),
        ],
        15_024_128,
        40_960,
    ),
    "Granite-4.0-H-Small": (
        [
            "36 x Mamba2 conv: tap*channel*2 B = 3*8448*2 B = 50,688 B",
            "36 x Mamba2 recurrent: value_head*value*key*4 B = 128*64*128*4 B = 4,194,304 B",
            *attention(4, 8, 128),
        ],
        152_819_712,
        16_384,
    ),
    "Falcon-H1-34B": (
        [
            "72 x Parallel 0.conv: tap*channel*2 B = 3*5120*2 B = 30,720 B",
            "72 x Parallel 0.recurrent: value_head*value*key*4 B = 32*128*256*4 B = 4,194,304 B",
            *(line.replace("Attention ", "Parallel 1.") for line in attention(72, 4, 128)),
        ],
        304_201_728,
        147_456,
    ),
    "Zamba2-2.7B": (
        [
            "45 x Mamba2 conv: tap*channel*2 B = 3*5248*2 B = 31,488 B",
            "45 x Mamba2 recurrent: value_head*value*key*4 B = 80*64*64*4 B = 1,310,720 B",
            *(line.replace("Attention ", "SharedBlockMamba attention.") for line in attention(9, 32, 160)),
            "9 x SharedBlockMamba mamba.conv: tap*channel*2 B = 3*5248*2 B = 31,488 B",
            "9 x SharedBlockMamba mamba.recurrent: value_head*value*key*4 B = 80*64*64*4 B = 1,310,720 B",
        ],
        72_479_232,
        184_320,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_state_of_a_sequence(name: str) -> None:
    """Bytes per layer by formula, per sequence of any length, and per token."""
    config = read(name)
    assert config.unknown_keys == ()
    lines, fixed, token = EXPECTED[name]
    result = size_of(config)
    assert (result.fixed, result.token) == (fixed, token)
    assert sorted(result.lines) == sorted([*lines, f"one sequence: {fixed:,} B and {token:,} B per token"])


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith(("Qwen3-", "Qwen3.5"))])
def test_layers_of_qwen(name: str) -> None:
    config = read(name)
    assert config.eps == 1e-6 and config.tied == name.endswith("0.8B")
    mixers = [mixer for mixer, _ in config.layers]
    assert [type(mixer) for mixer in mixers[:4]] == [GatedDeltaNetConfig] * 3 + [AttentionConfig]
    assert config.layers == config.layers[:4] * (len(mixers) // 4)
    assert {mixer.rope for mixer in mixers if isinstance(mixer, AttentionConfig)} == {Rope(64, 1e7)}


def test_layers_without_experts_among_those_with_them_are_refused() -> None:
    config = QWEN3_5_35B | {"text_config": QWEN3_5_35B["text_config"] | {"mlp_only_layers": [3]}}
    with pytest.raises(ConfigError, match=r"mlp_only_layers: expected one of \[\]"):
        family_of(config).read_config(config)


def test_a_share_of_a_published_model() -> None:
    """Qwen3.5-35B-A3B on 32 devices: two of four `model` devices share each KV head."""
    share = read("Qwen3.5-35B-A3B").shard(Devices(4, 8))
    mixer, feed_forward = share.layers[0]
    attention, _ = share.layers[3]
    assert isinstance(mixer, GatedDeltaNetConfig) and isinstance(feed_forward, MoeConfig)
    assert isinstance(attention, AttentionConfig)
    assert share.vocab_size == 62_080 and share.hidden_size == 2048
    assert (mixer.key_heads, mixer.value_heads, mixer.channels) == (4, 8, 2048)
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (4, 1, 256)
    assert (feed_forward.local_experts, feed_forward.router.experts) == (32, 256)
    assert (feed_forward.width, feed_forward.shared_width) == (128, 128)


@pytest.mark.parametrize(
    ("name", "fitting"),
    [
        ("Qwen3-Next-80B", "model = 1, 2, 4, 8, 16 and over expert = 1, 2, 4, 8, 16, 32, 64, 128, 256"),
        ("Falcon-H1-34B", "model = 1, 2, 4 and over expert = anything"),
        # 30 heads
        ("OLMo-Hybrid-7B", "model = 1, 2 and over expert = anything"),
    ],
)
def test_devices_that_published_models_can_be_split_over(name: str, fitting: str) -> None:
    """A Qwen3-Next of 512 experts goes on more devices along `expert` than are listed."""
    with pytest.raises(ShardingError) as error:
        read(name).shard(Devices(7, 3))
    assert str(error.value).endswith(f"It can be split over {fitting}.")
