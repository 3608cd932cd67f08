"""Special and added tokens of a tokenizer, from a checkpoint's files."""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from ir_passes.files.user_warnings import warn_user

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NAMED = "model_specific_special_tokens"
ADDED, SPECIAL = "added_tokens", "added_tokens_special"
"""Keys of the content of added_tokens.json and its special tokens."""
_FLAGS = ("lstrip", "rstrip", "single_word", "special", "normalized")

Token = str | AddedToken


def special_tokens(settings: Mapping[str, Any], defaults: Mapping[str, str | None]) -> dict[str, Token]:
    """Return the named tokens (bos_token, eos_token, ..., image_token, ...); raises ValueError."""
    tokens: dict[str, Token] = {}
    named = {role: settings.get(role, defaults.get(role)) for role in ROLES} | settings.get(NAMED, {})
    for role, value in named.items():
        if value is not None:
            tokens[role] = token_of(value, role)
    return tokens


def add_tokens(
    backend: tokenizers.Tokenizer,
    settings: Mapping[str, Any],
    named: Mapping[str, Token],
    written: Mapping[int, AddedToken],
) -> list[str]:
    """Add missing tokens in the order of transformers, so that their ids are equal.

    Args:
        written: of tokenizer.json, used if tokenizer_config.json lists none.

    Returns:
        All special tokens, in order.

    Raises:
        ValueError: a token has another id than in the files.
    """
    declared = _declared(settings)
    if "added_tokens_decoder" not in settings:
        declared |= written
    present = backend.get_added_tokens_decoder()
    # The tokenizer's own may have become special.
    adding: list[Token] = [declared[key] for key in sorted(declared)]
    contents = {token.content for token in present.values()} | {str_of(token) for token in adding}
    extra = settings.get("extra_special_tokens") or []
    if not isinstance(extra, list):
        raise ValueError(f"extra_special_tokens: expected a list or an object, found {extra!r}")
    listed = [token_of(token, "extra_special_tokens") for token in extra]
    for token in (*named.values(), *listed):
        # Of a token as text and as object, the last one decides.
        if str_of(token) not in contents and token not in adding:
            adding.append(token)
    roles = {str_of(token) for token in named.values()}
    tokens = [AddedToken(token, special=True) if isinstance(token, str) else token for token in adding]
    for token in tokens:
        token.special = token.special or token.content in roles
    backend.add_tokens(tokens)
    for key, token in declared.items():
        if backend.token_to_id(token.content) != key:
            raise ValueError(
                f"added_tokens_decoder[{key}]: expected {token.content!r} at that id, found "
                f"{backend.token_to_id(token.content)}"
            )
    backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    if settings.get("clean_up_tokenization_spaces") and type(backend.model).__name__ != "BPE":
        warn_user(
            "tokenizer_config.json: clean_up_tokenization_spaces is true, but decoded text is left as it is: "
            "transformers would remove spaces before punctuation",
        )
    return list(dict.fromkeys([*map(str_of, named.values()), *map(str_of, listed)]))


def _declared(settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    declared = settings.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or not all(str(key).isdecimal() for key in declared):
        raise ValueError("added_tokens_decoder: expected an object of token id -> token")
    tokens = {}
    for key, entry in declared.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str):
            raise ValueError(f"added_tokens_decoder[{key}]: expected a token with content, found {entry!r}")
        tokens[int(key)] = token_of(entry, f"added_tokens_decoder[{key}]")
    special = settings.get(SPECIAL, ())
    for content, key in settings.get(ADDED, {}).items():
        if isinstance(key, bool) or not isinstance(key, int) or key < 0:
            raise ValueError(f"added_tokens.json: {content!r}: expected a token id, found {key!r}")
        tokens[key] = AddedToken(content, normalized=content not in special, special=content in special)
    return tokens


def str_of(token: Token) -> str:
    return token if isinstance(token, str) else token.content


def is_token(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def token_of(value: Any, where: str) -> Token | Any:
    if isinstance(value, str):
        return value
    if not is_token(value):
        raise ValueError(f"{where}: expected a token, found {value!r}")
    return AddedToken(value["content"], **{flag: bool(value[flag]) for flag in _FLAGS if flag in value})
