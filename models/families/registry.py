"""Registry of the families that can be loaded."""

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import metadata
from typing import Any

from models.families.architectures import named_classes
from models.families.bamba import BAMBA, FALCON_H1
from models.families.family import Family
from models.families.granite_hybrid import GRANITE_HYBRID
from models.families.jamba import JAMBA
from models.families.lara_mini import LARA_MINI
from models.families.lfm.lfm2 import LFM2, LFM2_MOE
from models.families.lfm.lfm3 import LFM3
from models.families.linear_attention.alice_ai import ALICE_AI
from models.families.linear_attention.bailing_hybrid import BAILING_HYBRID
from models.families.linear_attention.gigachat3_5 import GIGACHAT3_5
from models.families.linear_attention.kimi_linear import KIMI_LINEAR
from models.families.linear_attention.minimax import MINIMAX
from models.families.mamba.mamba import FALCON_MAMBA, MAMBA
from models.families.nemotron_h import MAMBA2, NEMOTRON_H
from models.families.olmo_hybrid import OLMO_HYBRID
from models.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from models.families.qwen3_next import QWEN3_NEXT
from models.families.qwen4_exp import QWEN4_EXP
from models.families.state_spaces import original_family
from models.families.wrappers import TEXT_CONFIGS, WRAPPERS, wrapper_of
from models.families.zamba2 import ZAMBA2

FAMILIES = (
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN4_EXP,
    LFM2,
    LFM2_MOE,
    LFM3,
    LARA_MINI,
    KIMI_LINEAR,
    BAILING_HYBRID,
    MINIMAX,
    GIGACHAT3_5,
    ALICE_AI,
    MAMBA,
    FALCON_MAMBA,
    JAMBA,
    MAMBA2,
    NEMOTRON_H,
    GRANITE_HYBRID,
    BAMBA,
    FALCON_H1,
    OLMO_HYBRID,
    ZAMBA2,
)


MISSING: Mapping[str, str] = {
    "glm5_next": "attention over indexed positions and several residual streams (mHC)",
    "inkling": "short convolutions inside attention, relative biases and block attention residuals",
    "zaya": "convolutions over compressed keys and values (CCA)",
    "recurrent_gemma": "the recurrence RG-LRU",
}
"""`model_type` of a refused family -> missing parts (transformers 5.24, vLLM and SGLang of 2026-11)."""
GROUP = "hybridlm.families"
"""Entry-point group of other distributions: each is a `Family`, or several."""
BUILT_IN = "built in"
_registered: dict[Family, str] = {}


class FamilyError(ValueError):
    """A refused family, or an unreadable entry point."""


def register_family(family: Family, origin: str = "registered by this process") -> None:
    """Add a family to this process, once.

    Args:
        family: no other may have its name, a `model_type` or a class.
        origin: distribution and version, for certificates.

    Raises:
        FamilyError: no family, or another with one of its names.
    """
    if not isinstance(family, Family):
        raise FamilyError(f"register_family: expected a Family, got {type(family)} ({origin})")
    if family in _registered:
        return
    names = {family.name, *family.model_types, *family.architectures}
    for other in (*FAMILIES, *_registered, *WRAPPERS):
        name = other.name if isinstance(other, Family) else other.model_types[0]
        if clash := names & {name, *other.model_types, *other.architectures}:
            raise FamilyError(
                f"family {family.name} ({origin}): {name} has {', '.join(sorted(clash))} already; choose another name"
            )
    _registered[family] = origin


def families() -> dict[Family, str]:
    """Return every family with its origin: `BUILT_IN`, or distribution and version.

    Raises:
        FamilyError: an entry point of the group cannot be read; the message has all of them.
    """
    if faults := _read_entry_points():
        raise FamilyError("; ".join(faults))
    return dict.fromkeys(FAMILIES, BUILT_IN) | _registered


def family_named(name: str) -> tuple[Family, str]:
    """Return the family of a name, and its origin.

    Raises:
        FamilyError: unknown name, or an unreadable entry point.
    """
    for family in FAMILIES:
        if family.name == name:
            return family, BUILT_IN
    for family, origin in families().items():
        if family.name == name:
            return family, origin
    raise FamilyError(
        f"no family has the name {name!r}, which its ConfigReader was given; expected the name of the Family"
    )


@cache
def _read_entry_points() -> tuple[str, ...]:
    """Register the families of installed distributions, once; return the faults.

    The working directory, perhaps a checkpoint's folder, is left out.
    """
    directory, faults = os.path.realpath("."), []
    path = [folder for folder in sys.path if os.path.realpath(folder or ".") != directory]
    for distribution in metadata.distributions(path=path):
        origin = f"{distribution.name} {distribution.version}"
        for entry in distribution.entry_points.select(group=GROUP):
            try:
                value = entry.load()
                for family in [value] if isinstance(value, Family) else value:
                    register_family(family, origin)
            except Exception as error:  # code of another distribution may raise anything
                faults.append(f"entry point {entry.name} of {origin}, group {GROUP}: {type(error).__name__}: {error}")
    return tuple(faults)


class UnsupportedModel(ValueError):
    """A config.json with an unknown `model_type` or class."""


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json; check its classes.

    Raises:
        UnsupportedModel: unknown `model_type` or class, with the nearest family.
        FamilyError: no built-in family, and an unreadable entry point.
    """
    if (wrapper := wrapper_of(config)) is None:
        return _text_family(config)
    outer = {name: value for name, value in config.items() if name not in TEXT_CONFIGS}
    _check_classes(wrapper.model_types[0], wrapper.architectures, outer)
    return wrapper.family(_text_family(wrapper.text_config(config)))


def _text_family(config: Mapping[str, Any]) -> Family:
    """Return the family of a text model's config.json; raises as `family_of`."""
    if (original := original_family(config)) is not None:
        _check_classes(original.name, original.architectures, config)
        return original
    model_type = config.get("model_type")
    built_in = any(model_type in family.model_types for family in FAMILIES)
    for family in FAMILIES if built_in else families():
        if model_type in family.model_types:
            _check_classes(family.name, family.architectures, config)
            return family.of(config)
    supported = ", ".join(sorted(name for entry in (*families(), *WRAPPERS) for name in entry.model_types))
    classes = [name for _, name in named_classes(config)]
    kind = f"model_type {model_type!r}" if model_type is not None else "no model_type"
    kind += f" and the class {classes[0]!r:.200}" if classes else ""
    missing = MISSING.get(str(model_type).removesuffix("_text"))
    kind += "" if missing is None else f", which needs {missing}; this is not implemented"
    raise UnsupportedModel(f"config.json has {kind}; supported are: {supported}{_similar(model_type, classes)}")


def _check_classes(name: str, computed: tuple[str, ...], config: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for an unsupported class, such as an encoder."""
    refused = [(field, class_name) for field, class_name in named_classes(config) if class_name not in computed]
    if refused:
        for family in FAMILIES:
            if refused[0][1] in family.architectures:
                name, computed = family.name, family.architectures
        faults = "; ".join(f"{field}: {class_name!r:.200}" for field, class_name in refused[:8])
        raise UnsupportedModel(
            f"config.json has model_type {config.get('model_type')!r} and names classes that are not implemented for "
            f"it: {faults}; the nearest supported family is {name}: {', '.join(computed)}"
        )


def _similar(model_type: Any, classes: list[Any]) -> str:
    names = {name: family.name for family in families() for name in (*family.model_types, *family.architectures)}
    prefixes = [family.name for family in families() if str(model_type).startswith(family.name)]
    if prefixes:
        return f"; the nearest supported family is {max(prefixes, key=len)}"
    for name in (*classes, model_type):
        for match in get_close_matches(str(name)[:100], names, 1, 0.65):
            return f"; the nearest supported family is {names[match]}"
    return ""
