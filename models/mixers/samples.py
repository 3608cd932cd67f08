"""Mixers of size one, for the formulas of their states."""

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

ATTENTION = AttentionConfig(1, 1, 1)
LATENT_ATTENTION = LatentAttentionConfig(1, 1, 1, 1, 1)
GATED_DELTA_NET = GatedDeltaNetConfig(1, 1, 1, 1, 2, 1e-6)
KIMI_DELTA_ATTENTION = KimiDeltaAttentionConfig(1, 1, 2, 1e-6, 1)
LIGHTNING_ATTENTION = LightningAttentionConfig(1, 1, 1, 1e-6)
MAMBA1_MIXER = Mamba1Config(1, 1, 1, 2)
MAMBA2_MIXER = Mamba2Config(1, 1, 1, 1, 2, 1e-6)
SHARED_BLOCK = SharedBlockConfig(ATTENTION, MlpConfig(1), MAMBA2_MIXER, 0, 1, False, 1e-6)
GATED_SHORT_CONV = GatedShortConvConfig(2, 1)
INDEXED_ATTENTION = IndexedAttentionConfig(ATTENTION, 1, 1, 1, 1, 1e-6)
NGRAM_EMBEDDING = NgramEmbeddingConfig(1, 1, 2, (1, 1), (2,), 2, 1, 0, 1e-6)
