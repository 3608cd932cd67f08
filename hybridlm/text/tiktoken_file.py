"""tiktoken.model of Kimi checkpoints without tokenizer.json, as byte-level BPE.

Pattern, reserved tokens and cuts of long texts equal the checkpoints' Python file, which is not run.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, read_text
from models.families.tokenizers import TIKTOKEN as MODEL_TYPES

NAME = "tiktoken.model"
MAX_TIKTOKEN_BYTES = 50 * MEGABYTE
CLASS, CODE = "TikTokenTokenizer", "tokenization_kimi.py"
"""`tokenizer_class` and Python file of known checkpoints."""
RESERVED = 258
"""Tokens after the ranks; unnamed ones are <|reserved_token_ID|>."""
DEFAULT_SPECIAL = (
    "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|start_header_id|>", "<|end_header_id|>", "[EOT]",
    "<|im_system|>", "<|im_middle|>",
)  # fmt: skip
"""Special tokens without additional_special_tokens in tokenizer_config.json."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = (
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
"""Patterns of separately tokenised pieces, in the order of trials."""
MAX_PIECE, MAX_RUN = 400_000, 25_000
"""Characters after which a text is cut: any, and a run with, or without, white space."""


def is_read(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in MODEL_TYPES and settings.get("tokenizer_class") == CLASS


def read_tiktoken(directory: Path, settings: Mapping[str, Any], special: Sequence[str]) -> Tokenizer:
    """Return the tokenizer of tiktoken.model, with its added tokens.

    Args:
        special: tokens without text when special tokens are skipped.

    Raises:
        CheckpointError: the file is too long, no "base64 rank" lines with ranks 0, 1, ... of distinct byte strings and
            all bytes, or the Python file has another pattern.
    """
    path = directory / NAME
    ranks = _ranks(path)
    code = directory / CODE
    if code.exists() and any(word not in read_text(code, MEGABYTE) for word in WORDS):
        raise CheckpointError(
            path, f"{CODE} in the same folder splits texts by an unknown pattern", f"Known: {'|'.join(WORDS)}"
        )
    names = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names += [byte for byte in range(256) if byte not in names]
    # The characters that byte-level tokenizers write for bytes.
    alphabet = {byte: chr(byte if place < 188 else 68 + place) for place, byte in enumerate(names)}

    def written(token: bytes) -> str:
        return "".join(map(alphabet.__getitem__, token))

    merges = []
    for token in ranks:
        halves = ((token[:place], token[place:]) for place in range(1, len(token)))
        pairs = [(ranks[a], ranks[b], a, b) for a, b in halves if a in ranks and b in ranks]
        merges += [(written(a), written(b)) for _, _, a, b in sorted(pairs)]
    model = models.BPE({written(token): rank for token, rank in ranks.items()}, merges, ignore_merges=True)
    backend = Tokenizer(model)
    split = pre_tokenizers.Split(Regex("|".join(WORDS)), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    declared = settings.get("added_tokens_decoder")
    contents_by_id = (
        {str(key): token.get("content") for key, token in declared.items()} if isinstance(declared, dict) else {}
    )
    places = range(len(ranks), len(ranks) + RESERVED)
    contents = [contents_by_id.get(str(place)) or f"<|reserved_token_{place}|>" for place in places]
    backend.add_tokens([AddedToken(token, normalized=False, special=token in special) for token in contents])
    return backend


def _ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_text(path, MAX_TIKTOKEN_BYTES).split("\n"), 1):
        if not line.strip():
            continue
        token, _, rank = line.strip().partition(" ")
        try:
            value = base64.b64decode(token, validate=True)
        except (binascii.Error, ValueError):
            value = b""
        # ASCII digits only, and few: int() reads others, and is slow for many.
        if not value or value in ranks or rank != str(len(ranks)):
            raise CheckpointError(
                path, f"line {number}: expected base64 of new bytes and the rank {len(ranks)}, found {line!r:.80}"
            )
        ranks[value] = len(ranks)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise CheckpointError(path, f"expected all single bytes, {len(missing)} are missing, such as {missing[0]:#04x}")
    return ranks


def cut(text: str, added: Sequence[str]) -> list[str]:
    """Cut a text at added tokens, and long pieces further."""
    if len(text) <= MAX_RUN:
        return [text]
    between = re.split(f"({'|'.join(map(re.escape, sorted(added, key=len, reverse=True)))})", text)
    pieces: list[str] = []
    for run in between:
        for place in range(0, len(run), MAX_PIECE):
            pieces += _runs(run[place : place + MAX_PIECE])
    return pieces


def _runs(text: str) -> list[str]:
    """Cut a text after each `MAX_RUN` characters with, or without, white space."""
    ends = [0]
    for run in re.finditer(r"\S+|\s+", text):
        ends += range(run.start() + MAX_RUN, run.end(), MAX_RUN)
    return [text[begin:end] for begin, end in zip(ends, [*ends[1:], len(text)], strict=True)]


def in_order(value: Any) -> Any:
    """Sort keys of JSON objects: these checkpoints expect sorted tools."""
    if isinstance(value, Mapping):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(item) for item in value] if isinstance(value, list | tuple) else value
