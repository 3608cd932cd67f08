"""Which text is scored next, where several begin with a part that is consumed once.

Which texts of a call begin alike, and up to where they are consumed together.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybridlm.engine.prefix import Prefix
from hybridlm.scoring.text import Scoring


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


class Part(NamedTuple):
    """The beginning of several texts.

    Attributes:
        tokens: those that are consumed, from the beginning of the text on, and the one that the last of them predicts.
        parent: index of the part that it goes on from, None for the beginning.
    """

    tokens: tuple[int, ...]
    parent: int | None


def shared_parts(texts: Sequence[tuple[int, ...]], chunk: int, begin: int) -> tuple[list[Part], list[int | None]]:
    """Parts that two texts or more have in common, all of them whole chunks, and which of them each text goes on from.

    A text is cut into the same chunks as without the parts. The tokens that a part consumes are common, and so is the
    token behind them: what the part predicts holds for all its texts. Every text has something left to consume. Of
    parts within parts within parts the outermost and the innermost are kept, so that two states at a time are enough.

    Args:
        texts: token ids.
        chunk: tokens of a chunk.
        begin: where the first chunk begins, in all texts after the same tokens.

    Returns:
        The parts, each behind its parent, and for each text the index of its part.
    """
    tree = _Tree()
    ends = [tree.add(text, chunk, begin) for text in texts]
    branches = tree.branches()
    below = tree.has_below(branches)
    parts: list[Part] = []
    part_of: list[int | None] = [None]
    for node in range(1, len(tree.counts)):
        above = part_of[tree.parents[node]]
        if branches[node] and (above is None or not below[node]):
            text, length = tree.examples[node]
            parts.append(Part(text[: length + 1], above))
            above = len(parts) - 1
        part_of.append(above)
    return parts, [part_of[end] for end in ends]


class _Tree:
    """Chunks of texts by what stands before them. Node 0 is the beginning; parents come before their children."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, tuple[int, ...]], int] = {}
        self.counts, self.parents = [0], [0]
        self.examples: list[tuple[tuple[int, ...], int]] = [((), 0)]

    def add(self, text: tuple[int, ...], chunk: int, begin: int) -> int:
        """The node of the text's last whole chunk that leaves something to consume."""
        node = 0
        for end in range(begin + chunk, len(text) - 1, chunk):
            key = node, text[end - chunk : end + 1]
            child = self._nodes.setdefault(key, len(self.counts))
            if child == len(self.counts):
                self.counts.append(0)
                self.parents.append(node)
                self.examples.append((text, end))
            self.counts[child] += 1
            node = child
        return node

    def branches(self) -> list[bool]:
        """Nodes that texts have in common which do not all have the next one in common."""
        most = [0] * len(self.counts)
        for node in range(1, len(self.counts)):
            most[self.parents[node]] = max(most[self.parents[node]], self.counts[node])
        return [count > 1 and count > below for count, below in zip(self.counts, most, strict=True)]

    def has_below(self, branches: list[bool]) -> list[bool]:
        """Nodes with a branch somewhere below them."""
        below = [False] * len(self.counts)
        for node in range(len(self.counts) - 1, 0, -1):
            below[self.parents[node]] |= branches[node] or below[node]
        return below
