"""Model classes in a config.json (`architectures`, `auto_map`), and names of supported ones."""

from collections.abc import Iterator, Mapping
from typing import Any

HEADS = ("ForCausalLM", "Model", "ForSequenceClassification")
"""Ends of class names: a causal decoder with a vocabulary head, without head, and with a score head."""


def text_classes(*stems: str) -> tuple[str, ...]:
    """Return the names of the causal classes of transformers with these stems."""
    return tuple(stem + head for stem in stems for head in HEADS)


def named_classes(fields: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield field and name of every class in a config.json and its `text_config`.

    `architectures` has the class of the weights, and `auto_map` the classes in the checkpoint's Python files, which are
    never run. Files from hand or from GGUF metadata name no class.

    Args:
        fields: of the file, or of a part of it.
        where: name of the part.
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
    """Return the items of a list, or one value as a list; empty for null."""
    return [] if value is None else value if isinstance(value, list) else [value]
