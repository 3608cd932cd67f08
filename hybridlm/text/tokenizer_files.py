"""The tokenizer's files of a checkpoint, read as transformers reads them: added tokens, special tokens, chat templates.

Without added_tokens_decoder in tokenizer_config.json, the files of older versions count, too: special_tokens_map.json
and added_tokens.json.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, read_object, read_text

MAX_TOKENIZER_BYTES = 200 * MEGABYTE
MAX_CONFIG_BYTES = 16 * MEGABYTE
MAX_TEMPLATE_BYTES = 4 * MEGABYTE
MAX_TEMPLATES = 100
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OTHER_FORMATS = (
    "tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json",
)  # fmt: skip
TEMPLATE_FOLDER = "additional_chat_templates"
_FLAGS = ("lstrip", "rstrip", "single_word", "special", "normalized")

Token = str | AddedToken


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a tokenizer.json.

    Raises:
        CheckpointError: the file is too long or cannot be read.
    """
    return backend_of(read_text(path, MAX_TOKENIZER_BYTES), path)


def backend_of(text: str, path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of the text of a tokenizer.json; `path` is named if it cannot be read.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        # The library raises bare Exception for everything that it cannot read.
        raise CheckpointError(path, f"cannot be read: {error}") from error


def read_settings(directory: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, with what special_tokens_map.json and added_tokens.json say where they count.

    Raises:
        CheckpointError: a file is too long or cannot be read.
        ValueError: a file says what it cannot mean.
    """
    settings = _read(directory / "tokenizer_config.json")
    extra = settings.get("extra_special_tokens")
    if "additional_special_tokens" in settings and not extra:
        extra = settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    if "added_tokens_decoder" not in settings:
        for role, value in _read(directory / "special_tokens_map.json").items():
            if role == "extra_special_tokens" and isinstance(value, list):
                known = extra if isinstance(extra, list) else []
                value = [*known, *(token for token in value if token not in known)]
            settings[role] = value
        settings["added_tokens"] = _read(directory / "added_tokens.json")
    if "additional_special_tokens" in settings and "extra_special_tokens" not in settings:
        settings["extra_special_tokens"] = settings["additional_special_tokens"]
    return settings


def _read(path: Path) -> dict[str, Any]:
    return read_object(path, MAX_CONFIG_BYTES) if path.exists() else {}


def special_tokens(settings: Mapping[str, Any]) -> dict[str, Token]:
    """Return the tokens that have a name: bos_token, eos_token, ..., and those of the model's own (image_token, ...).

    Raises:
        ValueError: one is no token.
    """
    found: dict[str, Token] = {}
    named = {role: settings.get(role) for role in ROLES}
    own = {key: value for key, value in settings.items() if key.endswith("_token") and key not in ROLES}
    named |= {key: value for key, value in own.items() if isinstance(value, str) or _is_token(value)}
    extra = settings.get("extra_special_tokens")
    named |= extra if isinstance(extra, dict) else {}
    for role, value in named.items():
        if value is not None:
            found[role] = _token(value, role)
    return found


def add_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], named: Mapping[str, Token]) -> None:
    """Add the tokens that tokenizer.json does not have, in the order of transformers, so that they get the same ids.

    Raises:
        ValueError: a token has another id than the one that the files give it.
    """
    declared = _declared(settings, named)
    known = backend.get_added_tokens_decoder()
    same = {repr(token) for token in known.values()}
    adding = [declared[key] for key in sorted(declared) if repr(declared[key]) not in same]
    contents = {token.content for token in (*known.values(), *adding)}
    extra = settings.get("extra_special_tokens") or ()
    if not isinstance(extra, list | tuple | dict):
        raise ValueError(f"extra_special_tokens: expected a list or an object, found {extra!r}")
    listed = [] if isinstance(extra, dict) else [_token(token, "extra_special_tokens") for token in extra]
    for token in (*named.values(), *listed):
        if str_of(token) not in contents:
            contents.add(str_of(token))
            adding.append(token if isinstance(token, AddedToken) else AddedToken(token, special=True))
    roles = {str_of(token) for token in named.values()}
    for token in adding:
        token.special = token.special or token.content in roles
    backend.add_tokens(adding)
    for key, token in declared.items():
        if backend.token_to_id(token.content) != key:
            raise ValueError(
                f"added_tokens_decoder[{key}]: expected {token.content!r} at that id, found "
                f"{backend.token_to_id(token.content)}"
            )
    backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    if settings.get("clean_up_tokenization_spaces") and type(backend.model).__name__ != "BPE":
        warnings.warn(
            "tokenizer_config.json: clean_up_tokenization_spaces is true, but decoded text is left as it is: "
            "transformers would remove spaces before punctuation",
            stacklevel=4,
        )


def _declared(settings: Mapping[str, Any], named: Mapping[str, Token]) -> dict[int, AddedToken]:
    """Return the added tokens that the files give an id."""
    declared = settings.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or not all(str(key).isdecimal() for key in declared):
        raise ValueError("added_tokens_decoder: expected an object of token id -> token")
    found = {}
    for key, entry in declared.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str):
            raise ValueError(f"added_tokens_decoder[{key}]: expected a token with content, found {entry!r}")
        found[int(key)] = _token(entry, f"added_tokens_decoder[{key}]")
    extra = settings.get("extra_special_tokens")
    special = {str_of(token) for token in named.values()}
    special |= {str_of(_token(token, "extra_special_tokens")) for token in extra} if isinstance(extra, list) else set()
    for content, key in (settings.get("added_tokens") or {}).items():
        if isinstance(key, bool) or not isinstance(key, int) or key < 0:
            raise ValueError(f"added_tokens.json: {content!r}: expected a token id, found {key!r}")
        found[key] = AddedToken(content, normalized=content not in special, special=content in special)
    return found


def str_of(token: Token) -> str:
    """Return the text of a token."""
    return token if isinstance(token, str) else token.content


def _is_token(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def _token(value: Any, where: str) -> Token | Any:
    """Return a token written as text or as the object of an AddedToken."""
    if isinstance(value, str):
        return value
    if not _is_token(value):
        raise ValueError(f"{where}: expected a token, found {value!r}")
    return AddedToken(value["content"], **{flag: bool(value[flag]) for flag in _FLAGS if flag in value})


def chat_control_tokens(settings: Mapping[str, Any]) -> list[str] | None:
    """Return the tokens that only a chat template may write beside the special ones; None where no file names them.

    Raises:
        ValueError: no list of texts.
    """
    found = settings.get("chat_control_tokens")
    if found is not None and not (isinstance(found, list) and all(isinstance(one, str) for one in found)):
        raise ValueError(f"chat_control_tokens: expected a list of tokens, found {found!r}")
    return found


def chat_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> source of the chat templates; files take precedence over tokenizer_config.json.

    Raises:
        CheckpointError: a file is too long or cannot be read.
        ValueError: `chat_template` is not one of its forms.
    """
    files = sorted((directory / TEMPLATE_FOLDER).glob("*.jinja"))
    if len(files) > MAX_TEMPLATES:
        raise ValueError(f"{TEMPLATE_FOLDER}: expected at most {MAX_TEMPLATES} templates, found {len(files)}")
    named = {file.name.removesuffix(".jinja"): file for file in files}
    if (directory / "chat_template.jinja").exists():
        named = {"default": directory / "chat_template.jinja"} | named
    if named:
        return {name: read_text(file, MAX_TEMPLATE_BYTES) for name, file in named.items()}
    found = settings.get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, dict):
        found = [{"name": name, "template": template} for name, template in found.items()]
    valid = isinstance(found, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        for entry in found
    )
    if not valid:
        raise ValueError("chat_template: expected a string, or a list of objects with name and template")
    return {entry["name"]: entry["template"] for entry in found}
