"""Thoughts of a completion, apart from its answer, and their budget."""

from collections.abc import Sequence

from hybridlm.text.tokenizer import Tokenizer

_LOOK_BACK = 32
"""Prompt tokens searched for a start marker."""


def markers_of(tokenizer: Tokenizer, think_end: str | None) -> tuple[str, str] | None:
    """Return the markers before and after thoughts, or None.

    Args:
        tokenizer: with `THINK_MARKERS` as tokens or in a chat template.
        think_end: another end marker, with "/".
    """
    if think_end is None:
        return tokenizer.think_markers
    return think_end.strip().replace("/", "", 1), think_end.strip()


def opens_thoughts(tokenizer: Tokenizer, prompt: Sequence[int], markers: tuple[str, str]) -> bool:
    """Whether a prompt ends with the start marker of thoughts."""
    return tokenizer.decode(prompt[-_LOOK_BACK:], skip_special_tokens=False).rstrip().endswith(markers[0])


def split_thoughts(
    tokenizer: Tokenizer,
    text: str,
    token_ids: Sequence[int],
    markers: tuple[str, str] | None,
    opened: bool,
    skip_special_tokens: bool = True,
    keep_tool_markers: bool = False,
) -> tuple[str | None, str]:
    """Split a completion at the end of its thoughts.

    Args:
        text: decoded with these options; may end at a stop string.
        token_ids: for markers that the text lacks.
        opened: the prompt ended within thoughts.

    Returns:
        Thoughts, stripped and without markers, or None; the text after them, "" before their end.
    """
    if markers is None:
        return None, text
    start, end = markers
    start_id, end_id = tokenizer.token_to_id(start), tokenizer.token_to_id(end)
    if not opened and not text.lstrip().startswith(start) and (not token_ids or token_ids[0] != start_id):
        return None, text
    place, length = text.find(end), len(end)
    if place < 0 and end_id is not None and end_id in token_ids:
        thought_ids = list(token_ids)[: list(token_ids).index(end_id)]
        place, length = min(len(tokenizer.decode(thought_ids, skip_special_tokens, keep_tool_markers)), len(text)), 0
    thoughts, answer = (text, "") if place < 0 else (text[:place], text[place + length :])
    return thoughts.lstrip().removeprefix(start).strip(), answer.lstrip()


class ThinkingBudget:
    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], budget: int, think_end: str | None):
        markers = markers_of(tokenizer, think_end)
        if markers is None:
            raise ValueError("thinking_budget: the tokenizer has no known end marker of thoughts; give think_end")
        self._budget, self._opened, self._start = budget, opens_thoughts(tokenizer, prompt, markers), markers[0]
        self._end, self._stream, self._text = markers[1], tokenizer.stream(skip_special_tokens=False), ""
        self._count = 0
        self.end_ids = tokenizer.encode(markers[1], add_special_tokens=False)

    def spent(self, token: int) -> bool:
        """Add a token; return whether the thoughts must end now."""
        if self._budget < 0:
            return False
        self._text += self._stream.push(token)
        beginning = (self._text + self._stream.unsettled()).lstrip()
        self._opened = self._opened or beginning.startswith(self._start)
        # No thoughts so far, no beginning of their marker, or their end.
        if (not self._opened and not self._start.startswith(beginning)) or self._end in beginning:
            self._budget = -1
            return False
        self._count += self._opened
        if self._opened and self._count >= self._budget:
            self._budget = -1
            return True
        return False


class ThoughtsEnd:
    """End marker search in tokens after a prompt with open thoughts."""

    def __init__(self, tokenizer: Tokenizer, end: str):
        self._stream, self._end, self._text = tokenizer.stream(skip_special_tokens=False), end, ""
        self._end_id = tokenizer.token_to_id(end)

    def push(self, token: int) -> str | None:
        """Add a token; return the text after a complete end marker, else None."""
        self._text += self._stream.push(token)
        text = self._text + self._stream.unsettled()
        place = text.find(self._end)
        self._text = self._text[-len(self._end) :]
        return None if place < 0 else text[place + len(self._end) :]

    def before_end(self, tokens: Sequence[int]) -> int:
        """Return the number of leading tokens that are surely thoughts; markers may span tokens."""
        if self._end_id is None:
            return 0
        return tokens.index(self._end_id) if self._end_id in tokens else len(tokens)


def thoughts_end(tokenizer: Tokenizer, prompt: Sequence[int], think_end: str | None) -> ThoughtsEnd | None:
    """Return a finder of the end of thoughts; None without open thoughts."""
    markers = markers_of(tokenizer, think_end)
    if markers is None or not opens_thoughts(tokenizer, prompt, markers):
        return None
    return ThoughtsEnd(tokenizer, markers[1])
