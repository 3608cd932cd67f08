"""Mixers of size one, for the formulas of their states."""

from collections.abc import Iterable
from typing import Any

from models.layers.mlp import MlpConfig
from models.mixers.attention import AttentionConfig
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.mixers.gated_short_conv import GatedShortConvConfig
from models.mixers.indexed_attention import IndexedAttentionConfig
from models.mixers.kimi_delta_attention import KimiDeltaAttentionConfig
from models.mixers.latent_attention import LatentAttentionConfig
from models.mixers.lightning_attention import LightningAttentionConfig
from models.mixers.mamba1 import Mamba1Config
from models.mixers.mamba2 import Mamba2Config
from models.mixers.ngram_embedding import NgramEmbeddingConfig
from models.mixers.shared_block import SharedBlockConfig

_ATTENTION, _MAMBA2 = AttentionConfig(1, 1, 1), Mamba2Config(1, 1, 1, 1, 2, 1e-6)
_SAMPLES = (
    _ATTENTION,
    _MAMBA2,
    LatentAttentionConfig(1, 1, 1, 1, 1),
    GatedDeltaNetConfig(1, 1, 1, 1, 2, 1e-6),
    KimiDeltaAttentionConfig(1, 1, 2, 1e-6, 1),
    LightningAttentionConfig(1, 1, 1, 1e-6),
    Mamba1Config(1, 1, 1, 2),
    SharedBlockConfig(_ATTENTION, MlpConfig(1), _MAMBA2, 0, 1, False, 1e-6),
    GatedShortConvConfig(2, 1),
    IndexedAttentionConfig(_ATTENTION, 1, 1, 1, 1, 1e-6),
    NgramEmbeddingConfig(1, 1, 2, (1, 1), (2,), 2, 1, 0, 1e-6),
)


def samples(kinds: Iterable[type]) -> tuple[Any, ...]:
    """Return the mixer of size one of each kind."""
    return tuple(sample for kind in kinds for sample in _SAMPLES if type(sample) is kind)
