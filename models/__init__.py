"""Model families as flax modules over shared layers; state as explicit pytrees."""

from models.config import ConfigError
from models.cut import Cut, Part
from models.decoder import Decoder, DecoderConfig
from models.devices import Devices
from models.family import Family
from models.mtp import MtpDecoder
from models.registry import FAMILIES, UnsupportedModel, family_of
from models.share import ShareError
from models.state import KV_BLOCK, kv_blocks
from models.weights import Source, Weight

DISTRIBUTION = "hybridlm"

__all__ = [
    "DISTRIBUTION",
    "FAMILIES",
    "KV_BLOCK",
    "ConfigError",
    "Cut",
    "Decoder",
    "DecoderConfig",
    "Devices",
    "Family",
    "MtpDecoder",
    "Part",
    "ShareError",
    "Source",
    "UnsupportedModel",
    "Weight",
    "family_of",
    "kv_blocks",
]
