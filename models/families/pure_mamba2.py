"""Pure Mamba2 models: Nemotron-H's layers and tensor names with nothing but Mamba2 in them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from models.config.fields import read_decoder_config
from models.config.reader import ConfigReader
from models.decoder.decoder import DecoderConfig
from models.families.family import Family
from models.families.mamba2_fields import read_mamba2
from models.families.nemotron_h import weights

FIELDS = {
    "heads": "num_heads",
    "head_size": "head_dim",
    "groups": "n_groups",
    "state_size": "state_size",
    "kernel": "conv_kernel",
    "conv_bias": "use_conv_bias",
}
UNLIMITED = 1 << 30
"""Positions of a model without attention, which has no other limit than int32."""


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `mamba2`."""
    reader = ConfigReader("mamba2", config)
    eps = reader.number("layer_norm_epsilon", 1e-5)
    width = reader.integer("expand", 2) * reader.integer("hidden_size")
    mixer = read_mamba2(reader, FIELDS, eps, width)
    reader.choice("hidden_act", ["silu"], "silu")
    reader.choice("use_bias", [False], False)
    layers = ((mixer,),) * reader.integer("num_hidden_layers")
    decoder = read_decoder_config(reader, layers, eps, reader.flag("tie_word_embeddings", False))
    return dataclasses.replace(decoder, max_position_embeddings=UNLIMITED)


MAMBA2 = Family("mamba2", ("mamba2",), read_config, weights, (), ())
