"""config.json and tensors of MiniMax and Ling 2.5: layers, spellings, decay rates, refusals."""

from typing import Any

import numpy as np
from published import LING, LING_2_6, MINIMAX, read
from tiny_variants import LING_LIGHTNING, variant

from hybridlm.families import (
    AttentionConfig,
    KimiDeltaAttentionConfig,
    LatentAttentionConfig,
    LightningAttentionConfig,
    MlpConfig,
    MoeConfig,
    NormedResidual,
    Rope,
)
from models import Weight, family_of

NATIVE: dict[str, Any] = variant("minimax_base").config
TINY_LING: dict[str, Any] = LING_LIGHTNING.config


def branches(config: dict[str, Any]) -> list[tuple[NormedResidual, NormedResidual]]:
    """Mixer and feed-forward layer of each layer."""
    pairs = read(config).layers
    assert all(isinstance(branch, NormedResidual) for pair in pairs for branch in pair)
    return [(mixer, forward) for mixer, forward in pairs]  # type: ignore[misc]


def rates(config: dict[str, Any]) -> dict[int, np.ndarray]:
    """Decay rates by layer, as they are loaded."""
    weights: list[Weight] = family_of(config).weights(read(config))
    parameters = {weight.path[1]: weight for weight in weights if weight.path[-1] == "rate"}
    return {
        int(layer): weight.options[0].take(np.full(9, np.nan), (slice(None), ...))
        for layer, weight in parameters.items()
    }


def test_published_minimax() -> None:
    mixers, forwards = zip(*branches(MINIMAX), strict=True)
    assert {(branch.stream, branch.output) for branch in (*mixers, *forwards)} == {(3.5565588200778455, 1)}
    attention = AttentionConfig(64, 8, 128, Rope(64, 1e7))
    assert [i for i, mixer in enumerate(mixers) if mixer.inner == attention] == list(range(7, 80, 8))
    lightning = LightningAttentionConfig(64, 128, 1, 1e-6, activated=True)
    assert {mixer.inner for mixer in mixers} == {attention, lightning}
    (moe,) = {forward.inner for forward in forwards}
    assert isinstance(moe, MoeConfig) and (moe.router.experts, moe.router.per_token, moe.width) == (32, 2, 9216)
    assert moe.router.normalise and not moe.shared_width
    first, last = rates(MINIMAX)[0], rates(MINIMAX)[78]
    np.testing.assert_allclose(first[[0, 7, 63]], np.array([2**-0.125, 0.5, 2**-8]) * (1 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(last / first, 1 / 79, rtol=1e-3)


def test_both_spellings_of_minimax_are_one_model() -> None:
    names = {"layer_types": None, "rope_parameters": None}
    original = {name: value for name, value in NATIVE.items() if name not in names and "_factor" not in name}
    original |= {"model_type": "minimax_m1", "attn_type_list": [0, 1, 0], "rope_theta": 1e6, "postnorm": True}
    for part, factors in (("full_attention", "full_attn"), ("linear_attention", "linear_attn"), ("mlp", "mlp")):
        original |= {f"layernorm_{part}_{end}": NATIVE[f"{factors}_{end}_factor"] for end in ("alpha", "beta")}
    assert read(original) == read(NATIVE)
    alternating = {name: value for name, value in NATIVE.items() if name != "layer_types"}
    kinds = [type(mixer.inner) for mixer, _ in branches(alternating)]
    assert kinds == [AttentionConfig, LightningAttentionConfig, AttentionConfig]


def test_published_ling() -> None:
    config = read(LING_2_6)
    rope = Rope(64, 6e6)
    attention = LatentAttentionConfig(32, 512, 64, 128, 128, rope, query_rank=1536)
    assert [i for i, (mixer, _) in enumerate(config.layers) if mixer == attention] == [7, 15, 23, 31]
    lightning = LightningAttentionConfig(32, 128, 4, 1e-6, qk_eps=1e-6, rope=rope, scale=128**-0.5)
    assert {mixer for mixer, _ in config.layers} == {attention, lightning}
    assert [type(forward) for _, forward in config.layers] == [MlpConfig] + [MoeConfig] * 31
    assert isinstance(read(LING).layers[0][0], KimiDeltaAttentionConfig)
    skipped = ["model.layers.3.attention.slope", "model.layers.32.attention.dense.weight"]
    assert all(map(family_of(LING_2_6).skips, skipped))
    # Six heads: rates of four heads, then every second one of eight; layers count from 0.
    four, eight = 2.0 ** (-2.0 * np.arange(1, 5)), 2.0 ** -np.arange(1.0, 9)
    expected = np.concatenate([four, eight[[0, 2]]])
    for layer, array in rates(TINY_LING).items():
        np.testing.assert_allclose(array, expected * (1 - layer / 5 + 1e-5), rtol=1e-6)
    assert sorted(rates(TINY_LING)) == [0, 1, 3, 4]
