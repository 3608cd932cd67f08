"""Mamba and Falcon-Mamba: only selective state space layers (S6)."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from models.config.fields import read_decoder_config
from models.config.reader import ConfigReader
from models.decoder.decoder import DecoderConfig
from models.families.family import text_family
from models.mixers.mamba1 import Mamba1Config
from models.weights.layer_weights import backbone_weights, branch_weights, by_kind

DEFAULT_POSITIONS = 1_048_576
"""`max_position_embeddings` of config.json files without it: a recurrence has no limit."""
# How the model was initialised or trained, which implementation ran, and names of other programs for the same sizes.
UNUSED = """time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual
    residual_in_fp32 use_mambapy use_falcon_mambapy use_associative_scan d_inner d_model n_layer ssm_cfg fused_add_norm
    pad_vocab_size_multiple""".split()


def read_rank(reader: ConfigReader, name: str) -> int:
    """Read the size of the compressed time step; "auto": a sixteenth of the hidden size."""
    if reader.get(name) in (None, "auto"):
        return math.ceil(reader.integer("hidden_size") / 16)
    return reader.integer(name)


def _read(name: str, config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(name, config)
    # Falcon-Mamba's files have an `expand` that is not used.
    width = reader.integer("intermediate_size", int(reader.number("expand", 2.0) * reader.integer("hidden_size")))
    falcon = name == "falcon_mamba"
    mixer = Mamba1Config(
        width,
        reader.integer("state_size", 16),
        read_rank(reader, "time_step_rank"),
        reader.integer("conv_kernel", 4, minimum=2),
        conv_bias=reader.flag("use_conv_bias", True),
        norms="plain" if falcon else "none",
        eps=reader.number("mixer_rms_eps", 1e-6) if falcon else 1e-6,
    )
    reader.fixed({"use_bias": False, "hidden_act": "silu", "rms_norm": True})
    reader.ignore(UNUSED)
    layers = ((mixer,),) * reader.integer("num_hidden_layers")
    eps = reader.number("layer_norm_epsilon", 1e-5)
    tied = reader.flag("tie_word_embeddings", True)
    return read_decoder_config(reader, layers=layers, eps=eps, tied=tied, positions=DEFAULT_POSITIONS)


NAMES = {"conv_bias": "conv1d.bias", "dt_bias": "dt_proj.bias"}
NAMES |= {f"{part}_norm": f"{part}_layernorm" for part in ("dt", "b", "c")}
mamba1_weights = partial(branch_weights, names=NAMES)
"""List the parameters of a Mamba layer; arguments as for `branch_weights`."""


weights = partial(backbone_weights, describe=by_kind({Mamba1Config: ("mixer", mamba1_weights)}))
MAMBA, FALCON_MAMBA = (
    text_family(name, stem, lambda config, name=name: _read(name, config), weights, Mamba1Config, root="backbone.")
    for name, stem in (("mamba", "Mamba"), ("falcon_mamba", "FalconMamba"))
)
