"""Mamba2 layers in config.json and in checkpoints, under three sets of field names."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.fields import spelled
from models.config.reader import ConfigReader
from models.mixers.mamba2 import Mamba2Config
from models.weights.layer_weights import branch_weights

HYBRID_FIELDS = {
    "heads": "mamba_n_heads",
    "head_size": "mamba_d_head",
    "groups": "mamba_n_groups",
    "state_size": "mamba_d_state",
    "kernel": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
    "step_limits": "time_step_limit",
}
"""Fields of granitemoehybrid, bamba and falcon_h1."""
# Tokens per kernel call, initialisation of time steps, dtype of the residual stream.
_UNUSED = """chunk_size mamba_chunk_size expand mamba_expand time_step_min time_step_max time_step_floor time_step_rank
    rescale_prenorm_residual residual_in_fp32 use_mamba_kernels num_logits_to_keep""".split()


def read_mamba2(
    reader: ConfigReader,
    fields: Mapping[str, str],
    eps: float,
    width: int | None = None,
    default_groups: int = 1,
    **variant: Any,
) -> Mamba2Config:
    heads = reader.integer(fields["heads"])
    if width is not None and reader.get(fields["head_size"]) in (None, "auto"):
        head_size = max(width // heads, 1)
    else:
        head_size = reader.integer(fields["head_size"])
    if width is not None and heads * head_size != width:
        reader.fault(fields["heads"], f"as many heads of size {head_size} as make the inner width {width}")
    groups = reader.integer(fields["groups"], default_groups)
    if heads % groups:
        reader.fault(fields["groups"], f"a divisor of {fields['heads']} ({heads})")
        groups = 1
    reader.ignore(_UNUSED)
    return Mamba2Config(
        heads,
        head_size,
        groups,
        reader.integer(fields["state_size"]),
        reader.integer(fields["kernel"], 4, minimum=2),
        eps,
        conv_bias=reader.flag(fields["conv_bias"], True),
        step_limits=reader.limits(fields["step_limits"], (0.0, math.inf)),
        **variant,
    )


def with_floor(reader: ConfigReader, mixer: Mamba2Config) -> Mamba2Config:
    """Return a layer with transformers' floor of prompt time steps, if `hf_compat_dt_floor` asks."""
    if not reader.flag("hf_compat_dt_floor", False):
        return mixer
    low, high = mixer.step_limits
    return replace(
        mixer, step_limits=(max(low, reader.number(spelled(reader, "mamba_dt_min", "time_step_min"), 0.001)), high)
    )


mamba2_weights = partial(branch_weights, names={"conv_bias": "conv1d.bias"})
"""List the parameters of a Mamba2 layer; arguments as for `branch_weights`."""
