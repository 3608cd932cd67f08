"""vLLM's descriptions of structured outputs, as grammars of llguidance."""

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any, TypedDict

from hybridlm.errors import require_extra
from ir_passes.files.strict_json import parse_json

MAX_GRAMMAR_LENGTH = 4_000_000
"""Maximum characters of a grammar."""
KINDS = ("json", "json_object", "regex", "choice", "grammar")


class StructuredOutputs(TypedDict, total=False):
    """The form of a completion: exactly one of the first five.

    Keys: json: a JSON schema, as mapping or text, or a model class of pydantic. json_object: True for any JSON object.
    regex: of the whole completion, in Rust's syntax. choice: texts. grammar: Lark, as llguidance reads it.
    disable_any_whitespace: no white space between parts of the JSON.
    """

    json: Mapping[str, Any] | str | type
    json_object: bool
    regex: str
    choice: Sequence[str]
    grammar: str
    disable_any_whitespace: bool


def grammar_text(options: Any) -> str:
    """Return a grammar for llguidance, not yet compiled; raises ValueError."""
    require_extra("structured_outputs", "llguidance", "grammar")
    from llguidance import LLMatcher

    keys = [*KINDS, "disable_any_whitespace"]
    if not isinstance(options, Mapping) or [key for key in options if key not in keys]:
        raise ValueError(f"expected a mapping with one of {', '.join(KINDS)}, got {options!r:.80}")
    given_keys = [key for key in KINDS if options.get(key) is not None and (options[key] is not False or key == "json")]
    if len(given_keys) != 1:
        raise ValueError(f"expected exactly one of {', '.join(KINDS)}, got {', '.join(given_keys) or 'none'}")
    (kind,), value, compact = given_keys, options[given_keys[0]], options.get("disable_any_whitespace") or False
    if compact not in (True, False) or (compact and not kind.startswith("json")):
        raise ValueError(f"disable_any_whitespace: expected True or False, with json or json_object, got {compact!r}")
    if kind in ("json", "json_object"):
        if kind == "json_object" and value is not True:
            raise ValueError(f"json_object: expected True, got {value!r:.80}")
        schema = _schema(value) if kind == "json" else '{"type": "object"}'
        text = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False} if compact else None)
    elif kind == "choice":
        text = LLMatcher.grammar_from_lark(_choice(value))
    elif not isinstance(value, str):
        raise ValueError(f"{kind}: expected a string, got {value!r:.80}")
    else:
        text = LLMatcher.grammar_from_regex(value) if kind == "regex" else LLMatcher.grammar_from_lark(value)
    if len(text) > MAX_GRAMMAR_LENGTH:
        raise ValueError(f"{kind}: expected at most {MAX_GRAMMAR_LENGTH} characters, got {len(text)}")
    return text


def compiler_version() -> str:
    """Return llguidance's version, or "none"; masks depend on it."""
    return metadata.version("llguidance") if find_spec("llguidance") is not None else "none"


def _schema(value: Any) -> str:
    """Return a JSON schema as text, with properties in the completion's order."""
    describe = getattr(value, "model_json_schema", None) if isinstance(value, type) else None
    if describe is not None:
        value = describe()
    try:
        schema = parse_json(value) if isinstance(value, str) else json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"json: expected a JSON schema: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"json: expected a JSON schema, which is an object, got {schema!r:.80}")
    return json.dumps(schema)


def _choice(value: Any) -> str:
    """Return the Lark grammar of texts: one terminal, because llguidance limits alternatives."""
    texts = value if isinstance(value, list | tuple) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"choice: expected a list of texts that are not empty, got {value!r:.80}")
    # Strings of Lark are JSON strings, except that DEL must be escaped too.
    quoted = (json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") for text in texts)
    return "start: CHOICE\nCHOICE: " + " | ".join(quoted)
