"""Model families as flax modules over shared layers; state as explicit pytrees.

Imports no other of our packages. Begin with `families`, a file for each kind of checkpoint, then `decoder` and
`mixers`.
"""

from models.config.reader import ConfigError
from models.decoder.decoder import Decoder, DecoderConfig
from models.decoder.mtp import MtpDecoder
from models.families.family import Family
from models.families.registry import (
    BUILT_IN,
    FAMILIES,
    FamilyError,
    UnsupportedModel,
    families,
    family_named,
    family_of,
    register_family,
)
from models.families.wrappers import JEV, JEV_HEAD, WRAPPERS, text_fields
from models.sharding.devices import Devices
from models.sharding.shard_sizes import ShardingError
from models.sharding.sharded_dim import Segment, ShardedDim
from models.state.pages import KV_BLOCK, kv_blocks
from models.weights.sources import Weight, WeightSource

DISTRIBUTION = "hybridlm"

__all__ = [
    "BUILT_IN",
    "DISTRIBUTION",
    "FAMILIES",
    "JEV",
    "JEV_HEAD",
    "KV_BLOCK",
    "ConfigError",
    "ShardedDim",
    "Decoder",
    "DecoderConfig",
    "Devices",
    "Family",
    "FamilyError",
    "MtpDecoder",
    "Segment",
    "ShardingError",
    "WRAPPERS",
    "WeightSource",
    "UnsupportedModel",
    "Weight",
    "families",
    "family_named",
    "family_of",
    "kv_blocks",
    "register_family",
    "text_fields",
]
