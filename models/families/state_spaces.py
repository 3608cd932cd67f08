"""Original Mamba and Mamba2 files of the package mamba_ssm: no `model_type`, sizes in `ssm_cfg`.

Tensors are named as in the families `mamba` and `mamba2`. Defaults: `MambaConfig`, `Mamba` and `Mamba2` of mamba_ssm
2.3.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config.fields import read_dtype
from models.config.reader import ConfigReader
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.families.family import Family
from models.families.mamba.mamba import DEFAULT_POSITIONS, MAMBA
from models.families.nemotron_h import MAMBA2, MAX_MAMBA2_POSITIONS
from models.mixers.mamba1 import Mamba1Config
from models.mixers.mamba2 import Mamba2Config

EPS = 1e-5
"""Of all norms; no field has it."""
# Initialisation, kernels, precision of the residual stream; attn_cfg without attention layers.
UNUSED = ("residual_in_fp32", "fused_add_norm", "attn_cfg")
UNUSED_INNER = """conv_init A_init_range dt_min dt_max dt_init dt_scale dt_init_floor chunk_size use_mem_eff_path
    use_fast_path""".split()


def original_family(config: Mapping[str, Any]) -> Family | None:
    """Return the family of a config.json of mamba_ssm, or None."""
    if config.get("model_type") is not None or not {"d_model", "n_layer", "ssm_cfg"} <= config.keys():
        return None
    return replace(MAMBA2 if _is_mamba2(config) else MAMBA, read_config=read_original)


def _is_mamba2(config: Mapping[str, Any]) -> bool:
    inner = config["ssm_cfg"]
    return isinstance(inner, Mapping) and inner.get("layer") == "Mamba2"


def _read_mamba1(reader: ConfigReader, hidden: int) -> Mamba1Config:
    if reader.get("dt_rank") in (None, "auto"):
        rank = math.ceil(hidden / 16)
    else:
        rank = reader.integer("dt_rank")
    return Mamba1Config(
        int(reader.number("expand", 2.0) * hidden),
        reader.integer("d_state", 16),
        rank,
        reader.integer("d_conv", 4, minimum=2),
        conv_bias=reader.flag("conv_bias", True),
    )


def _read_mamba2(reader: ConfigReader, hidden: int) -> Mamba2Config:
    width, size = int(reader.number("expand", 2.0) * hidden), reader.integer("headdim", 64)
    if width % size:
        reader.fault("headdim", f"a divisor of the inner width {width}")
    heads, groups = max(width // size, 1), reader.integer("ngroups", 1)
    if heads % groups:
        reader.fault("ngroups", f"a divisor of the {heads} heads")
        groups = 1
    reader.choice("d_ssm", [None, width], None)
    reader.fixed({"D_has_hdim": False, "rmsnorm": True})
    return Mamba2Config(
        heads,
        size,
        groups,
        reader.integer("d_state", 128),
        reader.integer("d_conv", 4, minimum=2),
        EPS,
        conv_bias=reader.flag("conv_bias", True),
        step_limits=reader.limits("dt_limit", (0.0, math.inf)),
        norm="normed" if reader.flag("norm_before_gate", False) else "gated",
    )


def read_original(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of mamba_ssm; vocabulary and embedding are padded to a multiple."""
    second = _is_mamba2(config)
    name = "mamba2" if second else "mamba"
    reader = ConfigReader(name, config)
    hidden, layers = reader.integer("d_model"), reader.integer("n_layer")
    inner = reader.child("ssm_cfg") or ConfigReader(name, {})
    inner.choice("layer", ["Mamba1", "Mamba2"], "Mamba1")
    inner.choice("bias", [False], False)
    mixer: BranchConfig = _read_mamba2(inner, hidden) if second else _read_mamba1(inner, hidden)
    inner.ignore(UNUSED_INNER)
    reader.ignore(UNUSED)
    reader.choice("d_intermediate", [0], 0)
    reader.choice("attn_layer_idx", [[]], [])
    reader.choice("rms_norm", [True], True)
    multiple = reader.integer("pad_vocab_size_multiple", 8)
    return DecoderConfig(
        family=name,
        vocab_size=-(-reader.integer("vocab_size") // multiple) * multiple,
        hidden_size=hidden,
        max_position_embeddings=MAX_MAMBA2_POSITIONS if second else DEFAULT_POSITIONS,
        layers=((mixer,),) * layers,
        eps=EPS,
        norm_offset=0.0,
        tied=reader.flag("tie_embeddings", True),
        eos_token_ids=reader.integers("eos_token_id"),
        dtype=read_dtype(reader),
        unknown_keys=reader.close(),
    )
