"""Registry of the families that can be loaded."""

from collections.abc import Mapping
from typing import Any

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


class UnsupportedModel(ValueError):
    """Error for a config.json whose `model_type` no family has."""


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json, by its `model_type`.

    Raises:
        UnsupportedModel: no family has that `model_type`; the message lists those there are.
    """
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(sorted(name for family in FAMILIES for name in family.model_types))
    found = f"model_type {model_type!r}" if model_type is not None else "no model_type"
    raise UnsupportedModel(f"config.json has {found}; supported are: {supported}")
