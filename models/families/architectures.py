"""Model classes in config.json (`architectures`, `auto_map`), and supported names."""

from collections.abc import Iterator, Mapping
from typing import Any

HEADS = ("ForCausalLM", "Model", "ForSequenceClassification")
"""Ends of class names: a causal decoder with vocabulary head, without head, with score head."""


def text_classes(*stems: str) -> tuple[str, ...]:
    """Return the names of the causal classes of transformers with these stems."""
    return tuple(stem + head for stem in stems for head in HEADS)


def named_classes(fields: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield field and name of every class in a config.json and its `text_config`.

    `architectures` has the class of the weights, `auto_map` those in the checkpoint's Python files, which never run.
    """
    for name in _listed(fields.get("architectures")):
        yield f"{where}architectures", name
    code = fields.get("auto_map") or {}
    if not isinstance(code, Mapping):
        yield f"{where}auto_map", code
        code = {}
    for kind, names in code.items():
        # Other kinds are configurations and tokenizers. A name is "file.Class", or "organisation/model--file.Class".
        for name in _listed(names) if kind.startswith("AutoModel") else ():
            yield f"{where}auto_map.{kind}", name.rpartition(".")[2] if isinstance(name, str) else name
    inner = fields.get("text_config")
    if isinstance(inner, Mapping):
        yield from named_classes(inner, f"{where}text_config.")


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
