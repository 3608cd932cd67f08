"""Stable names for model families of other packages (docs/adding-a-family.md).

A distribution names its families in the entry-point group `hybridlm.families`; every process and command reads it.
"""

from models import ConfigError, FamilyError, families, register_family
from models.config.fields import paired, read_attending, read_decoder_config, read_heads, read_kinds
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import BlockResidual, BranchConfig, DecoderConfig, NormedResidual, PostNorm
from models.decoder.parallel import ParallelConfig
from models.decoder.streams import StreamsConfig
from models.families.architectures import text_classes
from models.families.family import Family
from models.layers.activations import SwigluLimit
from models.layers.initial import matrix, parameter
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.norms import NormConfig, rms_norm
from models.layers.rope import ProportionalScaling, Rope, YarnScaling
from models.layers.router import RouterConfig
from models.layers.short_conv import layer_conv
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.mixers.gated_short_conv import GatedShortConvConfig
from models.mixers.indexed_attention import IndexedAttentionConfig
from models.mixers.kimi_delta_attention import KimiDeltaAttentionConfig
from models.mixers.kv_cache import KVCache, append_and_attend, attend
from models.mixers.latent_attention import LatentAttentionConfig
from models.mixers.lightning_attention import LightningAttentionConfig
from models.mixers.mamba1 import Mamba1Config
from models.mixers.mamba2 import Mamba2Config
from models.mixers.ngram_embedding import NgramEmbeddingConfig
from models.mixers.recurrent import Recurrent
from models.mixers.shared_block import SharedBlockConfig
from models.ops.float32 import l2_norm, silu_gated
from models.ops.layout import merge_heads
from models.ops.linear import linear
from models.ops.recurrences.delta_rule import DeltaTokens, delta_rule
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs
from models.ops.recurrences.ssd import ssd
from models.sharding.devices import SINGLE_DEVICE, Devices, varying_like
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.rows import put_rows, take_rows
from models.state.shapes import LaneInfo
from models.state.state import ConvRecurrentState, StateArray, Stateful, conv_recurrent, name_dims, state_array
from models.weights.layer_weights import Path, attention_weights, decoder_weights, mlp_weights, moe_weights
from models.weights.sources import Weight, WeightSource, expert_matrices, joined, rows, tensor

__all__ = [
    "SINGLE_DEVICE",
    "AttentionConfig",
    "BlockResidual",
    "BranchConfig",
    "ConfigError",
    "ConfigReader",
    "ConvRecurrentState",
    "DecoderConfig",
    "DeltaTokens",
    "Devices",
    "Family",
    "FamilyError",
    "GatedDeltaNetConfig",
    "GatedShortConvConfig",
    "IndexedAttentionConfig",
    "KVCache",
    "KimiDeltaAttentionConfig",
    "LaneInfo",
    "LatentAttentionConfig",
    "LightningAttentionConfig",
    "Mamba1Config",
    "Mamba2Config",
    "MlpConfig",
    "MoeConfig",
    "NgramEmbeddingConfig",
    "NormConfig",
    "NormedResidual",
    "ParallelConfig",
    "Path",
    "PostNorm",
    "ProportionalScaling",
    "QkNorm",
    "RecurrenceInputs",
    "RecurrenceOutputs",
    "Recurrent",
    "Rope",
    "RouterConfig",
    "Segment",
    "SharedBlockConfig",
    "StateArray",
    "Stateful",
    "StreamsConfig",
    "SwigluLimit",
    "Weight",
    "WeightSource",
    "YarnScaling",
    "append_and_attend",
    "attend",
    "attention_weights",
    "conv_recurrent",
    "decoder_weights",
    "delta_rule",
    "expert_matrices",
    "families",
    "joined",
    "l2_norm",
    "layer_conv",
    "linear",
    "matrix",
    "merge_heads",
    "mlp_weights",
    "moe_weights",
    "name_dims",
    "paired",
    "parameter",
    "put_rows",
    "read_attending",
    "read_decoder_config",
    "read_heads",
    "read_kinds",
    "read_rope",
    "register_family",
    "rms_norm",
    "rows",
    "shard_config",
    "shard_inputs",
    "shard_outputs",
    "silu_gated",
    "ssd",
    "state_array",
    "take_rows",
    "tensor",
    "text_classes",
    "varying_like",
]
