"""Which text is scored next, where several begin with a part that is consumed once."""

from collections import deque
from collections.abc import Mapping

from hybridlm._prefix import Prefix
from hybridlm._scored_text import Scoring
from hybridlm._shared_prefixes import shared_parts


class ScoringQueue:
    """Texts and parts that wait for a lane.

    What goes on from a part waits until the part has been consumed, and then goes first, so that its state is given up
    soon. Of `most` states that parts may keep at a time one is left for parts within parts: these can always be
    begun, and whoever waits for one of them is never waited for in turn.

    Args:
        texts: token ids by the number of the text.
        prefix: what every text begins with.
        chunk: tokens of a chunk; common parts are whole chunks.
        most: states that parts may keep, at least 2, or 0 to consume every text by itself.

    Attributes:
        shares: whether any texts have a part in common.
    """

    def __init__(self, texts: Mapping[int, tuple[int, ...]], prefix: Prefix | None, chunk: int, most: int):
        self._most, self._kept = most, 0
        begin = 0 if prefix is None else prefix.snapshot.label.position
        found, of = shared_parts(list(texts.values()), chunk, begin) if most else ([], [None] * len(texts))
        self.shares = bool(found)
        part_of = dict(zip(texts, of, strict=True))
        parts: list[Scoring] = []
        for part in found:
            parts.append(Scoring(None, part.tokens, prefix, None if part.parent is None else parts[part.parent]))
        longest_first = sorted(texts, key=lambda i: -len(texts[i]))
        waiting = list(parts)
        for i in longest_first:
            part = part_of[i]
            waiting.append(Scoring(i, texts[i], prefix, None if part is None else parts[part]))
        self._parts: deque[Scoring] = deque()
        self._texts: deque[Scoring] = deque()
        for one in waiting:
            if one.parent is not None:
                one.parent.children.append(one)
            elif one.index is None:
                self._parts.append(one)
            else:
                self._texts.append(one)
        self._left = len(waiting)

    def __bool__(self) -> bool:
        """Whether something has not begun."""
        return self._left > 0

    def take(self) -> Scoring | None:
        """What begins next; None where everything waits for a part that is being consumed."""
        if not (self._texts and self._texts[0].parent is not None) and self._parts:
            room = self._most - self._kept - (self._parts[0].parent is None)
            if room > 0:
                self._kept += 1
                self._left -= 1
                return self._parts.popleft()
        if not self._texts:
            return None
        self._left -= 1
        return self._texts.popleft()

    def begun(self, one: Scoring) -> None:
        """The state that it goes on from has been copied."""
        if one.parent is not None:
            one.parent.children.remove(one)
            if not one.parent.children:
                one.parent.snapshot = None
                self._kept -= 1

    def consumed(self, part: Scoring) -> None:
        """The state behind a part is there: what goes on from it can begin."""
        self._texts.extendleft(one for one in reversed(part.children) if one.index is not None)
        self._parts.extendleft(one for one in reversed(part.children) if one.index is None)
