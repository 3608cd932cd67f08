"""Incremental detokenization: joined pieces equal the whole text, and never change; stop strings end it.

`tokenizers.decoders.DecodeStream` raises for invalid bytes, holds back a U+FFFD of the text, and has no end.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

REPLACEMENT = "\ufffd"
_MAX_WINDOW = 64
"""Tokens before the window is shortened."""
_MIN_CONTEXT = 4
"""Tokens of a shortened window: decoders treat the first token of a text differently."""
_OF_ONE_TOKEN = ("Replace", "Strip", "Metaspace", "WordPiece", "CTC")
"""Decoders that change each token separately, except the first and repetitions."""
_IN_BYTE_TOKENS = frozenset("<0x123456789abcdefABCDEF>")


@dataclass(frozen=True)
class Streaming:
    """Decoder properties that decide when text is final.

    Attributes:
        by_token: a token changes no earlier text, except as below; otherwise only the end is final.
        joins_bytes: the text may end within a character (byte level).
        byte_tokens: one-byte tokens (byte fallback); a run is final once another token follows: it must be valid as a
            whole.
    """

    by_token: bool = True
    joins_bytes: bool = True
    byte_tokens: frozenset[int] = frozenset()


def streaming_of(backend: "tokenizers.Tokenizer") -> Streaming:
    if backend.decoder is None:
        return Streaming(joins_bytes=False)
    steps = _flat(json.loads(backend.decoder.__getstate__()))
    kinds = [step.get("type") for step in steps]
    byte_tokens = frozenset[int]()
    if "ByteFallback" in kinds:
        digits = "0123456789abcdefABCDEF"
        ids = (backend.token_to_id(f"<0x{high}{low}>") for high in digits for low in digits)
        byte_tokens = frozenset(token for token in ids if token is not None)
    return Streaming(_by_token(steps), "ByteLevel" in kinds, byte_tokens)


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step.get("type") != "Sequence":
        return [step]
    return [child for part in step["decoders"] for child in _flat(part)]


def _by_token(steps: Sequence[dict[str, Any]]) -> bool:
    joined = after_suffix = False
    for place, step in enumerate(steps):
        kind = step.get("type")
        if joined and (kind not in ("Fuse", "Strip") or step.get("stop")):
            return False  # it sees one token, the whole text
        if after_suffix and kind != "Fuse":
            return False  # the last token's text changes after it
        if kind in ("Fuse", "ByteLevel"):
            joined = True
        elif kind == "ByteFallback":
            if not all(map(_keeps_byte_tokens, steps[:place])):
                return False
        elif kind == "BPEDecoder":
            after_suffix = True
        elif kind not in _OF_ONE_TOKEN:
            return False
    return True


def _keeps_byte_tokens(step: dict[str, Any]) -> bool:
    """Whether a decoder neither changes nor makes tokens such as "<0x0A>"."""
    pattern = (step.get("pattern") or {}).get("String")
    return step.get("type") == "Replace" and bool(pattern) and not _IN_BYTE_TOKENS & {*pattern, *step["content"]}


class StreamDecoder:
    """Decoder of token ids, one at a time; holds back text that may change."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        streaming: Streaming | None = None,
        has_text: Callable[[int], bool] = lambda token: True,
    ) -> None:
        """Begin a sequence.

        Args:
            streaming: None for a byte-level decoder.
            has_text: whether `decode` uses an id at all.
        """
        self._decode, self._has_text = decode, has_text
        self._streaming = Streaming() if streaming is None else streaming
        # The last returned tokens stay: some decoders drop a leading space.
        self._window: list[int] = []
        self._given = 0
        self._held = False

    def push(self, token_id: int) -> str:
        """Add a token; return the final text, often "" within a character."""
        if not self._has_text(token_id):
            return ""
        self._window.append(token_id)
        self._held = True
        if not self._streaming.by_token or token_id in self._streaming.byte_tokens:
            return ""
        text = self._decode(self._window)
        settled = len(text)
        if self._streaming.joins_bytes and text.endswith(REPLACEMENT):
            settled -= 1  # one stands for all bytes of an incomplete character
        piece = text[self._given : settled]
        self._given = max(self._given, settled)
        self._held = self._given < len(text)
        if len(self._window) > _MAX_WINDOW:
            self._shorten(text)
        return piece

    def unsettled(self) -> str:
        """Return the pending text without an incomplete character."""
        return self._decode(self._window)[self._given :].rstrip(REPLACEMENT) if self._held else ""

    def flush(self) -> str:
        """Return the pending text at the end; incomplete characters are U+FFFD."""
        rest = self._decode(self._window)[self._given :] if self._held else ""
        self._window, self._given, self._held = [], 0, False
        return rest

    def _shorten(self, text: str) -> None:
        """Drop first tokens of the window without influence."""
        if self._held:
            half = len(self._window) // 2
            head, tail = self._decode(self._window[:half]), self._decode(self._window[half:])
            if head + tail == text and len(head) <= self._given and tail:
                del self._window[:half]
                self._given -= len(head)
            return
        keep = _MIN_CONTEXT
        while keep < len(self._window):
            # A context without text would leave the next token first.
            if context := self._decode(self._window[-keep:]):
                del self._window[:-keep]
                self._given = len(context)
                return
            keep *= 2


class GrowingText:
    """The decoded text of one sequence, ended by the first stop string."""

    def __init__(self, stream: StreamDecoder, stop_strings: Sequence[str], *, min_tokens: int = 0):
        """Begin a text; stop strings within the first `min_tokens` tokens are text, as in vLLM."""
        self._stream, self._stops, self._given = stream, stop_strings, 0
        self._unchecked, self._checked_from = min_tokens, 0
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> None:
        piece = self._stream.push(token)
        rest = self._stream.unsettled() if self._stops else ""
        if self._unchecked > 0:
            self._unchecked -= 1
            self._checked_from = len(self.text) + len(piece) + len(rest)
        self._add(piece)
        if rest and not self.stopped:
            self._find(self.text + rest, len(self.text))

    def finish(self) -> None:
        if not self.stopped:
            self._add(self._stream.flush())

    def _add(self, piece: str) -> None:
        length = len(self.text)
        self.text += piece
        self._find(self.text, length)

    def _find(self, text: str, searched: int) -> None:
        searched = max(searched, self._checked_from)
        places = [text.find(stop, max(0, searched - len(stop) + 1)) for stop in self._stops]
        places = [place for place in places if place >= 0]
        if places:
            self.text = text[: min(places)]
            self.stopped = True

    def take(self, final: bool = False) -> str:
        """Return new text; hold back a possible beginning of a stop string."""
        end = len(self.text)
        if not final and not self.stopped:
            end -= max((self._overlap(stop) for stop in self._stops), default=0)
        piece = self.text[self._given : end]
        self._given = max(self._given, end)
        return piece

    def _overlap(self, stop: str) -> int:
        longest = min(len(stop) - 1, len(self.text))
        return next((size for size in range(longest, 0, -1) if self.text.endswith(stop[:size])), 0)
