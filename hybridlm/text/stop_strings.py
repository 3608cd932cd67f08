"""Incremental text with stop strings, also across tokens or inside a token."""

from collections.abc import Sequence

from hybridlm.text.tokenizer import Tokenizer


class GrowingText:
    """The decoded text of one sequence, ended by the first stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str],
        *,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        keep_tool_markers: bool = False,
    ):
        """Begin a text; stop strings within the first `min_tokens` tokens are text, as in vLLM."""
        self._stream = tokenizer.stream(skip_special_tokens, keep_tool_markers)
        self._stops, self._unchecked, self._checked_from = stop_strings, min_tokens, 0
        self._given = 0
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
