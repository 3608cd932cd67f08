"""Each config.json field left out, for every family: transformers' default or a refusal."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint
from tiny_variants import VARIANTS, Variant
from transformers import AutoConfig

from models import ConfigError, DecoderConfig, UnsupportedModel, family_of

pytestmark = pytest.mark.oracle

# Which token ends a text and how tensors are stored is read from other files, too.
ELSEWHERE = {"unknown_keys", "eos_token_ids", "dtype"}


def paths(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the place of every field that models read."""
    for name, value in config.items():
        yield (name,)
        if isinstance(value, dict) and name in ("text_config", "rope_parameters", "rope_scaling", "linear_attn_config"):
            yield from ((name, *inner) for inner in paths(value))


def without(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    head, *rest = path
    if rest:
        return config | {head: without(config[head], tuple(rest))}
    return {name: value for name, value in config.items() if name != head}


def read(config: dict[str, Any]) -> DecoderConfig | None:
    """Return the read value; None for a refused file."""
    try:
        result = family_of(config).read_config(config)
    except (ConfigError, UnsupportedModel):
        return None
    return replace(result, unknown_keys=(), eos_token_ids=(), dtype="")


@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
def test_each_field_left_out(variant: Variant, tmp_path: Path) -> None:
    write_checkpoint(variant, 0, tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    assert read(record) is not None
    compared = 0
    for path in paths(record):
        fewer = without(record, path)
        actual = read(fewer)
        if actual is None:
            continue
        (tmp_path / "config.json").write_text(json.dumps(fewer))
        try:
            reference = AutoConfig.from_pretrained(tmp_path)
        except Exception:
            continue  # transformers refuses it
        explicit = json.loads(reference.to_json_string(use_diff=False))
        if path == ("tie_word_embeddings",) and "text_config" in explicit:
            # AutoModelForCausalLM reads this; the class with a vision tower sets false, and its files have no head.
            explicit = explicit["text_config"] | {name: explicit[name] for name in ("image_token_id", "video_token_id")}
        expected = read(explicit)
        assert expected is not None, (path, explicit)
        different = {
            field.name: (getattr(actual, field.name), getattr(expected, field.name))
            for field in fields(DecoderConfig)
            if field.name not in ELSEWHERE and getattr(actual, field.name) != getattr(expected, field.name)
        }
        assert not different, (path, different)
        compared += 1
    assert compared >= 8
