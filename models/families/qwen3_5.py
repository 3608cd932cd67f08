"""Qwen3.5 and Qwen3.6, dense (`qwen3_5`) or with MoE in every layer (`qwen3_5_moe`).

The vision tower of multimodal checkpoints is skipped.
"""

from collections.abc import Mapping
from typing import Any

from models.decoder.decoder import DecoderConfig
from models.families.family import Family
from models.families.qwen import ReadConfig, qwen_family, read_decoder, read_moe, text_reader, weights
from models.layers.mlp import MlpConfig


def read_dense(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `qwen3_5` (nested text_config) or `qwen3_5_text`."""
    outer, reader = text_reader("qwen3_5", config)
    mlp = MlpConfig(reader.integer("intermediate_size"))
    reader.get("mlp_only_layers")  # layers without experts; all layers are dense
    return read_decoder("qwen3_5", outer, reader, [mlp] * reader.integer("num_hidden_layers"))


def read_sparse(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `qwen3_5_moe` (nested text_config) or `qwen3_5_moe_text`."""
    outer, reader = text_reader("qwen3_5_moe", config)
    moe = read_moe(reader, normalise=True)
    reader.choice("mlp_only_layers", [[]], [])
    return read_decoder("qwen3_5_moe", outer, reader, [moe] * reader.integer("num_hidden_layers"))


def _family(name: str, stem: str, read: ReadConfig) -> Family:
    """Return a family of multimodal checkpoints and of text checkpoints."""
    classes = (f"{stem}ForConditionalGeneration", f"{stem}TextModel", f"{stem}TextForSequenceClassification")
    return qwen_family(name, stem, read, weights, model_types=(f"{name}_text",), architectures=classes)


QWEN3_5 = _family("qwen3_5", "Qwen3_5", read_dense)
QWEN3_5_MOE = _family("qwen3_5_moe", "Qwen3_5Moe", read_sparse)
