"""Registry of the families that can be loaded."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config.reader import ConfigError
from models.decoder.decoder import DecoderConfig
from models.families.bailing_hybrid import BAILING_HYBRID
from models.families.bamba import BAMBA, FALCON_H1
from models.families.family import Family
from models.families.granite_hybrid import GRANITE_HYBRID
from models.families.kimi_linear import KIMI_LINEAR
from models.families.lfm2 import LFM2, LFM2_MOE
from models.families.nemotron_h import MAMBA2, NEMOTRON_H
from models.families.olmo_hybrid import OLMO_HYBRID
from models.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from models.families.qwen3_next import QWEN3_NEXT

FAMILIES = (
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    LFM2,
    LFM2_MOE,
    KIMI_LINEAR,
    BAILING_HYBRID,
    MAMBA2,
    NEMOTRON_H,
    GRANITE_HYBRID,
    BAMBA,
    FALCON_H1,
    OLMO_HYBRID,
)


JEV = "jev"
"""`model_type` of a decision model that transformers saved: another model, whose config.json is its `text_config`, with
a linear head beside it."""
JEV_HEAD = (r"proj\.weight", r"proj\.bias")
"""Tensors of that head, which are no part of the model below it."""


class UnsupportedModel(ValueError):
    """Error for a config.json whose `model_type` no family has."""


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json, by its `model_type`.

    Raises:
        UnsupportedModel: no family has that `model_type`; the message lists those there are.
    """
    if config.get("model_type") == JEV:
        return _of_jev(config)
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(sorted([JEV, *(name for family in FAMILIES for name in family.model_types)]))
    found = f"model_type {model_type!r}" if model_type is not None else "no model_type"
    raise UnsupportedModel(f"config.json has {found}; supported are: {supported}")


def _of_jev(config: Mapping[str, Any]) -> Family:
    """Return the family of the model below a head, which reads its own part of config.json and skips the head."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        raise ConfigError(JEV, [f"text_config: expected an object, found {inner!r}"])
    below = family_of(inner)

    def below_a_head(family: Family) -> Family:
        def read(fields: Mapping[str, Any]) -> DecoderConfig:
            return family.read_config(fields["text_config"])

        return replace(family, read_config=read, skipped=(*family.skipped, *JEV_HEAD))

    drafting = None if below.with_head is None else below_a_head(below.with_head)
    return replace(below_a_head(below), with_head=drafting)
