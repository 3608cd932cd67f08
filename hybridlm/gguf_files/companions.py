"""config.json and the tokenizer's files, made from the metadata of a GGUF file."""

import json
from typing import Any

from hybridlm.errors import CheckpointError
from hybridlm.gguf_files.config import read_architecture
from hybridlm.gguf_files.header import GgufHeader

_SPACES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_LLAMA3 = _SHORT + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _SPACES
_QWEN2 = _SHORT + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _SPACES
_QWEN35 = _SHORT + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_OF_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "lfm2")
SPLITS = {**dict.fromkeys(_OF_LLAMA3, _LLAMA3), "qwen2": _QWEN2, "qwen35": _QWEN35}
"""`tokenizer.ggml.pre` -> pattern of separately tokenised pieces."""
GGUF_TOKENIZER = "GgufTokenizer"
"""`tokenizer_class` of these files: tokenizer.json is used unchanged."""
_CONTROL, _USER_DEFINED = 3, 4
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def companions(header: GgufHeader) -> dict[str, str]:
    """Return config.json and, with a tokenizer, its two files by name.

    Raises:
        CheckpointError: missing or contradictory metadata, or an unsupported tokenizer.
    """
    config, _ = read_architecture(header)
    files = {"config.json": json.dumps(config, indent=2)}
    if header.metadata.get("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        return files
    tokens = _strings(header, "tokens")
    special = _special_tokens(header, tokens)
    files["tokenizer.json"] = json.dumps(_tokenizer(header, tokens, special), ensure_ascii=False)
    settings = {"tokenizer_class": GGUF_TOKENIZER} | special | _chat_templates(header)
    files["tokenizer_config.json"] = json.dumps(settings, ensure_ascii=False)
    return files


def _strings(header: GgufHeader, key: str) -> list[str]:
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(header.path, f"tokenizer.ggml.{key}: expected a list of strings, found {value!r:.80}")
    return value


def _special_tokens(header: GgufHeader, tokens: list[str]) -> dict[str, Any]:
    special = {}
    for role, key in _ROLES.items():
        token = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token is None:
            continue
        if type(token) is not int or not 0 <= token < len(tokens):
            raise CheckpointError(
                header.path, f"tokenizer.ggml.{key}_token_id: expected one of {len(tokens)} tokens, found {token!r:.80}"
            )
        special[role] = tokens[token]
    return special


def _chat_templates(header: GgufHeader) -> dict[str, Any]:
    prefix = "tokenizer.chat_template"
    templates = {"default": header.metadata.get(prefix)}
    for key, value in header.metadata.items():
        if key.startswith(prefix + "."):
            templates[key.removeprefix(prefix + ".")] = value
    texts = [{"name": name, "template": text} for name, text in templates.items() if isinstance(text, str)]
    return {"chat_template": texts} if texts else {}


def _tokenizer(header: GgufHeader, tokens: list[str], special: dict[str, Any]) -> dict[str, Any]:
    model, split = (header.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if model != "gpt2" or split not in SPLITS:
        raise CheckpointError(
            header.path,
            f"tokenizer.ggml.model {model!r:.80} with tokenizer.ggml.pre {split!r:.80} is not read, expected gpt2 "
            f"(byte-level BPE) with one of {', '.join(SPLITS)}",
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        duplicate = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise CheckpointError(header.path, f"tokenizer.ggml.tokens: {duplicate!r:.80} is there twice")
    kinds = header.metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CheckpointError(header.path, f"tokenizer.ggml.token_type: expected a number for {len(tokens)} tokens")
    merges = [_merge(header, text) for text in _strings(header, "merges")]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": token, **flags, "special": kind == _CONTROL}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED) and token
    ]
    llama3 = split in _OF_LLAMA3
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    pieces = {"type": "Split", "pattern": {"Regex": SPLITS[split]}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        # As in these models' tokenizer.json; llama.cpp does not normalise.
        "normalizer": None if llama3 else {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pieces, bytes_of]},
        "post_processor": _around(header, special, llama3, vocabulary),
        "decoder": bytes_of,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": llama3,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _merge(header: GgufHeader, text: str) -> list[str]:
    pair = text.split(" ")
    if len(pair) != 2 or not all(pair):
        raise CheckpointError(header.path, f"tokenizer.ggml.merges: expected two tokens, found {text!r:.80}")
    return pair


def _around(
    header: GgufHeader, special: dict[str, Any], begins: bool, vocabulary: dict[str, int]
) -> dict[str, Any] | None:
    """Return the post-processor that adds tokens around each text. `begins`: BOS by default."""
    adds = {role: header.metadata.get(f"tokenizer.ggml.add_{role}_token") for role in ("bos", "eos")}
    first = "bos_token" in special and (begins if adds["bos"] is None else adds["bos"] is True)
    last = "eos_token" in special and adds["eos"] is True
    if not first and not last:
        return None

    def template(sequence: str, number: int) -> list[dict[str, Any]]:
        return [
            *([{"SpecialToken": {"id": special["bos_token"], "type_id": number}}] if first else []),
            {"Sequence": {"id": sequence, "type_id": number}},
            *([{"SpecialToken": {"id": special["eos_token"], "type_id": number}}] if last else []),
        ]

    used = [special[role] for role, wanted in (("bos_token", first), ("eos_token", last)) if wanted]
    return {
        "type": "TemplateProcessing",
        "single": template("A", 0),
        "pair": template("A", 0) + template("B", 1),
        "special_tokens": {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in used},
    }
