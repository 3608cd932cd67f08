"""Published configs give their models' layers and a sequence's state size."""

import math

import jax.numpy as jnp
import pytest
from published import PUBLISHED, QWEN3_5_35B

from hybridlm.families import AttentionConfig, GatedDeltaNetConfig, MoeConfig, Rope
from models import ConfigError, DecoderConfig, Devices, ShardingError, family_of


def read(name: str) -> DecoderConfig:
    return family_of(PUBLISHED[name]).read_config(PUBLISHED[name])


def line(count: int, part: str, factors: dict[str, int], size: int = 2, grows: bool = False) -> str:
    """Return the line of a state array of `count` layers: named factors, bytes of a number, and their product."""
    total = math.prod(factors.values()) * size
    names, numbers = "*".join(factors), "*".join(map(str, factors.values()))
    return f"{count} x {part}: {names}*{size} B = {numbers}*{size} B = {total:,} B" + " per token" * grows


def attention(count: int, heads: int, size: int, mixer: str = "Attention ") -> list[str]:
    return [line(count, f"{mixer}{part}", {"kv_head": heads, part: size}, grows=True) for part in ("key", "value")]


def latent(count: int) -> list[str]:
    return [line(count, "LatentAttention key", {"kv_head": 1, "key": 576}, grows=True)]


def conv(count: int, mixer: str, channels: int, taps: int = 3) -> list[str]:
    return [line(count, f"{mixer}conv", {"tap": taps, "channel": channels})]


def recurrent(count: int, mixer: str, heads: int, values: int = 128, keys: int = 128) -> list[str]:
    return [line(count, f"{mixer}recurrent", {"value_head": heads, "value": values, "key": keys}, 4)]


def both(count: int, mixer: str, channels: int, *sizes: int) -> list[str]:
    return conv(count, mixer, channels) + recurrent(count, mixer, *sizes)


GDN, KDA, MAMBA, LIGHTNING, SHORT = (
    f"{name} " for name in ("GatedDeltaNet", "KimiDeltaAttention", "Mamba2", "LightningAttention", "GatedShortConv")
)
# Layers, channels of the convolution, heads and their sizes, bytes: worked out by hand.
EXPECTED: dict[str, tuple[list[str], int, int]] = {
    "Qwen3.5-35B-A3B": (both(30, GDN, 8192, 32) + attention(10, 2, 256), 64_389_120, 20_480),
    "Qwen3.5-0.8B": (both(18, GDN, 6144, 16) + attention(6, 2, 256), 19_537_920, 12_288),
    "Qwen3-Next-80B": (both(36, GDN, 8192, 32) + attention(12, 2, 256), 77_266_944, 24_576),
    "Qwen3.8-Flash-Next": (
        [
            *both(36, GDN, 10240, 48),
            "1 x NgramEmbedding tokens: tap*4 B = 2*4 B = 8 B",
            "1 x NgramEmbedding ngram_conv: tap*channel*2 B = 9*10240*2 B = 184,320 B",
            *attention(12, 2, 256, "IndexedAttention "),
            line(12, "IndexedAttention index", {"kv_head": 1, "key": 128}, grows=True),
        ],
        115_642_376,
        27_648,
    ),
    "Qwen3.5-27B": (both(48, GDN, 10240, 48) + attention(16, 4, 256), 153_944_064, 65_536),
    "Qwen3.5-122B-A10B": (both(36, GDN, 12288, 64) + attention(12, 2, 256), 153_649_152, 24_576),
    "Nemotron-3-Nano": (both(23, MAMBA, 6144, 64, 64) + attention(6, 2, 128), 49_082_368, 6_144),
    "Nemotron-3-Super": (both(40, MAMBA, 10240, 128, 64) + attention(8, 2, 128), 170_229_760, 8_192),
    "Kimi-Linear-48B": (both(20, KDA, 12288, 32) + latent(7), 43_417_600, 8_064),
    "Ling-3.0-Flash": (both(35, KDA, 12288, 32) + latent(7), 75_980_800, 8_064),
    "Ling-2.6-Flash": (recurrent(28, LIGHTNING, 32) + latent(4), 58_720_256, 4_608),
    "MiniMax-Text-01": (recurrent(70, LIGHTNING, 64) + attention(10, 8, 128), 293_601_280, 40_960),
    "GigaChat3.5-432B": (both(30, GDN, 16384, 64) + latent(10), 128_778_240, 11_520),
    "AliceAI-80B": (both(36, KDA, 12288, 32) + attention(12, 2, 256), 78_151_680, 24_576),
    "OLMo-Hybrid-7B": (both(24, GDN, 11520, 30, 192, 96) + attention(8, 30, 128), 54_743_040, 122_880),
    "LFM2-1.2B": (conv(10, SHORT, 2048, 2) + attention(6, 8, 64), 81_920, 12_288),
    "LFM2-8B": (conv(18, SHORT, 2048, 2) + attention(6, 8, 64), 147_456, 12_288),
    "LFM3-1.7B": (conv(13, SHORT, 2048, 6) + attention(11, 4, 128), 319_488, 22_528),
    "Lara-4-Mini": (both(14, GDN, 4096, 16) + attention(20, 4, 128), 15_024_128, 40_960),
    "Granite-4.0-H-Small": (both(36, MAMBA, 8448, 128, 64) + attention(4, 8, 128), 152_819_712, 16_384),
    "Falcon-H1-34B": (
        both(72, "Parallel 0.", 5120, 32, 128, 256) + attention(72, 4, 128, "Parallel 1."), 304_201_728, 147_456,
    ),
    "Zamba2-2.7B": (
        both(45, MAMBA, 5248, 80, 64, 64) + attention(9, 32, 160, "SharedBlockMamba attention.")
        + both(9, "SharedBlockMamba mamba.", 5248, 80, 64, 64),
        72_479_232,
        184_320,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_state_of_a_sequence(name: str) -> None:
    """Bytes per layer by formula, per sequence of any length, and per token."""
    config = read(name)
    assert config.unknown_keys == ()
    lines, fixed, token = EXPECTED[name]
    result = family_of(PUBLISHED[name]).abstract(config).state_size(jnp.bfloat16)
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
