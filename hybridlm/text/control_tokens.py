"""Control tokens in users' texts, apart from the template's.

They are marked before rendering and encoded as plain text; the marks are transformers', for equal ids.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybridlm.text.tokenizer import Tokenizer

BEGIN, END = "\U000f0000", "\U000f0001"
"""Marks of each character of a token: a cut text has no complete token."""


def control_tokens(tokenizer: Tokenizer, source: str) -> tuple[str, ...]:
    """Return a template's reserved tokens: special tokens, and added tokens in its source.

    `chat_control_tokens` in tokenizer_config.json replaces the latter.
    """
    from hybridlm.text.sandbox import literal_text  # jinja2 takes a while to import

    named = tokenizer.chat_control_tokens
    text = literal_text(source) if named is None else ""

    def controls(token: str) -> bool:
        # White space among the added tokens is ordinary text of templates.
        return token in named if named is not None else token in text and not token.isspace()

    return tuple(token for token, special in tokenizer.added_tokens.items() if special or controls(token))


class ControlTokens:
    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[str]):
        self._tokenizer = tokenizer
        self._any = _any_of(tokens)
        self._marked = re.compile(f"({_any_of(list(map(_marked, tokens))).pattern})|[{BEGIN}{END}]")
        self._line = tokenizer.encode("\n", add_special_tokens=False)

    def mark(self, value: Any) -> Any:
        """Return a JSON value with marked control tokens, also in field names."""
        if isinstance(value, str):
            # Marks in the text itself could forge one.
            return self._any.sub(lambda match: _marked(match[0]), value.replace(BEGIN, "").replace(END, ""))
        if isinstance(value, Mapping):
            return {self.mark(name): self.mark(item) for name, item in value.items()}
        return [self.mark(item) for item in value] if isinstance(value, list | tuple) else value

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a rendered text, without the tokenizer's BOS or EOS.

        A partial mark of a cut text is dropped, and divides the text.

        Raises:
            ValueError: the tokenizer makes a control token of plain text.
        """
        first, *pieces = self._marked.split(text)
        ids = self._tokenizer.encode(first, add_special_tokens=False)
        for i, piece in enumerate(pieces):
            if not piece:
                continue
            plain = i % 2 == 0
            piece = piece.replace(BEGIN, "").replace(END, "")
            piece_ids = self._encode_piece(piece, plain)
            if plain and self._tokenizer.token_to_id(piece) in piece_ids:
                raise ValueError(f"control token {piece!r}: the tokenizer also encodes its plain text as this token")
            ids += piece_ids
        return ids

    def _encode_piece(self, piece: str, plain: bool) -> list[int]:
        def encode(text: str) -> list[int]:
            if plain:
                return self._tokenizer.encode_plain(text)
            return self._tokenizer.encode(text, add_special_tokens=False)

        # Some tokenizers put a space before a text, but not within one.
        ids = encode(f"\n{piece}")
        count = len(self._line)
        return ids[count:] if ids[:count] == self._line else encode(piece)


def _marked(token: str) -> str:
    return "".join(f"{BEGIN}{character}" for character in token) + END


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")
