"""Qwen3.5 and Qwen3.6 with a mixture of experts in every layer; the text tower of multimodal checkpoints."""

from collections.abc import Mapping
from typing import Any

from models.decoder.decoder import DecoderConfig
from models.families.qwen import qwen_family, read_decoder, read_moe, text_reader, weights


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `qwen3_5_moe` (nested text_config) or `qwen3_5_moe_text`."""
    outer, reader = text_reader("qwen3_5_moe", config)
    moe = read_moe(reader, normalise=True)
    reader.choice("mlp_only_layers", [[]], [])
    return read_decoder("qwen3_5_moe", outer, reader, [moe] * reader.integer("num_hidden_layers"))


QWEN3_5_MOE = qwen_family("qwen3_5_moe", ("qwen3_5_moe", "qwen3_5_moe_text"), read_config, weights)
