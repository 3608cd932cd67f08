"""Tokenizer files of a checkpoint, as transformers reads them: class, tokens and templates.

Without added_tokens_decoder in tokenizer_config.json, special_tokens_map.json and added_tokens.json count, too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, read_object, read_text
from hybridlm.gguf_files import companions, read_header
from hybridlm.text.added_tokens import (
    ADDED,
    NAMED,
    ROLES,
    SPECIAL,
    Token,
    add_tokens,
    is_token,
    special_tokens,
    str_of,
    token_of,
)
from hybridlm.text.tiktoken_file import DEFAULT_SPECIAL, MODEL_TYPES, is_read, read_tiktoken
from hybridlm.text.tiktoken_file import NAME as TIKTOKEN
from hybridlm.text.tokenizer_classes import DEFAULTS, PLAIN, build, class_of, finish
from ir_passes.files.user_warnings import warn_user

MAX_TOKENIZER_BYTES = 200 * MEGABYTE
MAX_CONFIG_BYTES = 16 * MEGABYTE
MAX_TEMPLATE_BYTES = 4 * MEGABYTE
MAX_TEMPLATES = 100
OTHER_FORMATS = (
    "tokenizer.model", TIKTOKEN, "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json",
)  # fmt: skip
TEMPLATE_FOLDER = "additional_chat_templates"


def read_tokenizer(path: Path) -> dict[str, Any] | None:
    """Return the arguments of `Tokenizer`, or None.

    Raises:
        CheckpointError: a file that is too long or cannot be read, or an unimplemented tokenizer class.
        ValueError: a field of a file is wrong.
    """
    if path.suffix.lower() == ".gguf" and path.is_file():
        texts = companions(read_header(path))
        if "tokenizer.json" not in texts:
            return None
        return _parts(path, texts["tokenizer.json"], json.loads(texts["tokenizer_config.json"]), {})
    if not (path / "tokenizer.json").exists():
        return _of_another_format(path)
    text = read_text(path / "tokenizer.json", MAX_TOKENIZER_BYTES)
    return _parts(path, text, read_settings(path), _read(path / "config.json"))


def _parts(path: Path, text: str, settings: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        # The library raises bare Exception.
        raise CheckpointError(path / "tokenizer.json", f"cannot be read: {error}") from error
    written = backend.get_added_tokens_decoder()
    name = class_of(settings, config, '"ByteLevel"' in text)
    if name != PLAIN:
        backend = build(name, backend, settings)
    named = special_tokens(settings, DEFAULTS.get(name, {}))
    finish(name, backend, add_tokens(backend, settings, named, written))
    return _with_templates(path, backend, settings, named)


def _of_another_format(path: Path) -> dict[str, Any] | None:
    """Return the arguments without tokenizer.json; warn of a tokenizer in another format."""
    formats = [name for name in OTHER_FORMATS if (path / name).exists()]
    settings, config = ({}, {}) if TIKTOKEN not in formats else (read_settings(path), _read(path / "config.json"))
    if is_read(settings, config):
        named = special_tokens(settings, {"bos_token": "[BOS]", "eos_token": "[EOS]"})
        listed = settings.setdefault("extra_special_tokens", list(DEFAULT_SPECIAL))
        special = [
            *map(str_of, named.values()),
            *(str_of(token_of(source, "extra_special_tokens")) for source in listed),
        ]
        backend = read_tiktoken(path, settings, special)
        add_tokens(backend, settings, named, {})
        return _with_templates(path, backend, settings, named, of_tiktoken=True)
    if formats:
        warn_user(
            f"{path}: found {', '.join(formats)} but no tokenizer.json, the only format that is read, but for "
            f"{TIKTOKEN} of {', '.join(MODEL_TYPES)}: prompts have to be token ids. transformers can write one: "
            f"AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    return None


def _with_templates(
    path: Path,
    backend: tokenizers.Tokenizer,
    settings: dict[str, Any],
    named: dict[str, Token],
    of_tiktoken: bool = False,
) -> dict[str, Any]:
    roles = {role: str_of(token) for role, token in named.items()}
    return {
        "backend": backend,
        "special_tokens": roles,
        "chat_templates": chat_templates(path, settings),
        "of_tiktoken": of_tiktoken,
        "chat_control_tokens": chat_control_tokens(settings),
    }


def chat_control_tokens(settings: Mapping[str, Any]) -> list[str] | None:
    """Return non-special tokens reserved for chat templates; raises ValueError for no list."""
    tokens = settings.get("chat_control_tokens")
    if tokens is not None and not (isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)):
        raise ValueError(f"chat_control_tokens: expected a list of tokens, found {tokens!r}")
    return tokens


def read_settings(directory: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, merged with special_tokens_map.json and added_tokens.json."""
    settings = _read(directory / "tokenizer_config.json")
    settings = {key: value for key, value in settings.items() if key not in (ADDED, SPECIAL)}
    if "additional_special_tokens" in settings and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    # Named tokens; those written here replace the list of a saved tokenizer.
    names = {key: value for key, value in settings.items() if _is_own(key) and isinstance(value, str)}
    names |= _take_dict(settings, "extra_special_tokens")
    saved = _take_dict(settings, NAMED)
    names = names or saved
    if "added_tokens_decoder" not in settings:
        older = _read(directory / "special_tokens_map.json")
        for role, value in older.items():
            if role == "extra_special_tokens" and isinstance(value, list):
                present = settings.get(role)
                present = present if isinstance(present, list) else []
                value = [*present, *(token for token in value if token not in present)]
            settings[role] = value
        names |= _take_dict(settings, "extra_special_tokens")
        # Objects of tokenizer_config.json are no special tokens of added_tokens.json.
        listed, tokens = (source.get("extra_special_tokens") or [] for source in (settings, older))
        if not isinstance(listed, list):
            raise ValueError(f"extra_special_tokens: expected a list or an object, found {listed!r}")
        special = [(role, settings[role]) for role in ROLES if role in older or isinstance(settings.get(role), str)]
        special += [("extra_special_tokens", token) for token in listed if isinstance(token, str) or token in tokens]
        settings[SPECIAL] = [str_of(token_of(token, role)) for role, token in special if token]
        settings[ADDED] = _read(directory / "added_tokens.json")
    if "additional_special_tokens" in settings and "extra_special_tokens" not in settings:
        settings["extra_special_tokens"] = settings["additional_special_tokens"]
    named = {key: value for key, value in settings.items() if _is_own(key) and key not in names}
    settings[NAMED] = {key: value for key, value in named.items() if isinstance(value, str) or is_token(value)} | names
    return settings


def _is_own(key: str) -> bool:
    return key.endswith("_token") and key not in ROLES


def _take_dict(settings: dict[str, Any], key: str) -> dict[str, Any]:
    return settings.pop(key) if isinstance(settings.get(key), dict) else {}


def _read(path: Path) -> dict[str, Any]:
    return read_object(path, MAX_CONFIG_BYTES) if path.exists() else {}


def chat_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return sources of chat templates by name; files precede tokenizer_config.json."""
    files = sorted((directory / TEMPLATE_FOLDER).glob("*.jinja"))
    if len(files) > MAX_TEMPLATES:
        raise ValueError(f"{TEMPLATE_FOLDER}: expected at most {MAX_TEMPLATES} templates, found {len(files)}")
    named = {file.name.removesuffix(".jinja"): file for file in files}
    if (directory / "chat_template.jinja").exists():
        named = {"default": directory / "chat_template.jinja"} | named
    if named:
        return {name: read_text(file, MAX_TEMPLATE_BYTES) for name, file in named.items()}
    templates = settings.get("chat_template")
    if templates is None:
        return {}
    if isinstance(templates, str):
        return {"default": templates}
    if isinstance(templates, dict):
        templates = [{"name": name, "template": template} for name, template in templates.items()]
    valid = isinstance(templates, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        for entry in templates
    )
    if not valid:
        raise ValueError("chat_template: expected a string, or a list of objects with name and template")
    return {entry["name"]: entry["template"] for entry in templates}
