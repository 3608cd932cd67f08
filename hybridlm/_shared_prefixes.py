"""Which texts of a call begin alike, and up to where they are consumed together."""

from collections.abc import Sequence
from typing import NamedTuple


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
