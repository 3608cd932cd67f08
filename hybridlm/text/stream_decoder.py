"""Incremental detokenization: text that was returned never changes."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
# A UTF-8 character has at most four bytes, so at most three replacement characters can still become one.
_MAX_UNSETTLED = 3
# Tokens after which the window is shortened although its end is not valid UTF-8; bounds the work per token.
_MAX_WINDOW = 64


class StreamDecoder:
    """Decoder of token ids to text, one at a time.

    A token may end in the middle of a UTF-8 character; its text is held back until the character is complete. The
    pieces together are the text of all ids at once (a vocabulary with byte fallback may decode invalid UTF-8 to a
    different number of replacement characters).
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Begin a sequence; `decode` returns the text of a list of ids."""
        self._decode = decode
        # Some decoders drop a leading space, so the last returned tokens stay in the window as context.
        self._window: list[int] = []
        self._context = 0
        self._given = 0

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now final, often "" within a character."""
        self._window.append(token_id)
        text = self._decode(self._window)
        trailing = len(text) - len(text.rstrip(REPLACEMENT))
        return self._give(text, len(text) - min(trailing, _MAX_UNSETTLED))

    def flush(self) -> str:
        """Return the text that was held back, at the end of the sequence; an incomplete character is U+FFFD."""
        text = self._decode(self._window)
        rest = text[self._given :]
        self._window, self._context, self._given = [], 0, 0
        return rest

    def _give(self, text: str, settled: int) -> str:
        piece = text[self._given : settled]
        self._given = max(self._given, settled)
        if self._given == len(text):
            self._cut(self._context)
            self._context = len(self._window)
        elif len(self._window) > _MAX_WINDOW:
            self._cut_where_equal(text)
        return piece

    def _cut(self, count: int) -> None:
        del self._window[:count]
        self._given = len(self._decode(self._window)) if self._window else 0

    def _cut_where_equal(self, text: str) -> None:
        half = len(self._window) // 2
        before, after = self._decode(self._window[:half]), self._decode(self._window[half:])
        if before + after == text and len(before) <= self._given:
            del self._window[:half]
            self._given -= len(before)
            self._context = 0
