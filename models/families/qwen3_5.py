"""Qwen3.5 with dense feed-forward layers; the text tower of multimodal checkpoints."""

from collections.abc import Mapping
from typing import Any

from models.decoder.decoder import DecoderConfig
from models.families.qwen import qwen_family, read_decoder, text_reader, weights
from models.layers.mlp import MlpConfig


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `qwen3_5` (nested text_config) or `qwen3_5_text`."""
    outer, reader = text_reader("qwen3_5", config)
    mlp = MlpConfig(reader.integer("intermediate_size"))
    reader.get("mlp_only_layers")  # which layers have no experts: none has
    return read_decoder("qwen3_5", outer, reader, [mlp] * reader.integer("num_hidden_layers"))


QWEN3_5 = qwen_family("qwen3_5", ("qwen3_5", "qwen3_5_text"), read_config, weights)
