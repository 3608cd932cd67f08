"""A radix tree over token ids: cached states and KV spans of common prefixes.

Edges have spans of per-token buffers, nodes fixed-size states. The tree counts references: split edges share buffers,
nothing is copied.
"""

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from hybridlm.rows.cached_buffers import B, BufferSpan

S = TypeVar("S")
T = TypeVar("T", tuple[int, ...], str)


class TreeError(ValueError):
    """The tree is broken, or an operation would break it; with every fault."""


class Node(Generic[S, B]):
    """The end of an edge.

    Attributes:
        tokens: of its edge; empty for the root.
        position: tokens from the root.
        state: after all tokens up to here.
    """

    __slots__ = ("__weakref__", "_parent", "children", "spans", "position", "state", "tokens")

    def __init__(self, tokens: tuple[int, ...], spans: tuple[BufferSpan[B], ...], parent: "Node[S, B] | None"):
        self.tokens, self.spans, self.parent = tokens, spans, parent
        self.position: int = len(tokens) + (0 if parent is None else parent.position)
        self.children: dict[int, Node[S, B]] = {}
        self.state: S | None = None

    @property
    def parent(self) -> "Node[S, B] | None":
        return None if self._parent is None else self._parent()

    @parent.setter
    def parent(self, parent: "Node[S, B] | None") -> None:
        # Weak, so that a tree is freed with its root.
        self._parent = None if parent is None else weakref.ref(parent)

    @property
    def path(self) -> list["Node[S, B]"]:
        """Nodes from the root (excluded) to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def all_spans(self) -> tuple[BufferSpan[B], ...]:
        """Buffers of every token from the first one to here."""
        return tuple(span for node in self.path for span in node.spans)


class Match(NamedTuple, Generic[S, B]):
    """Longest match of tokens in the tree.

    Attributes:
        into: child with the edge where the match ends, or None.
    """

    length: int
    node: Node[S, B]
    into: Node[S, B] | None


class RadixTree(Generic[S, B]):
    """States by the tokens before them.

    Every node but the root has a state or two children.

    Args:
        grows: edges have per-token spans.
    """

    def __init__(self, grows: bool = True):
        self.root: Node[S, B] = Node((), (), None)
        self._grows = grows
        self._uses = Counter[B]()

    def match(self, tokens: Sequence[int]) -> Match[S, B]:
        tokens, node = tuple(tokens), self.root
        while node.position < len(tokens):
            child = node.children.get(tokens[node.position])
            if child is None:
                break
            common = common_length(child.tokens, tokens[node.position : child.position])
            if common < len(child.tokens):
                return Match(node.position + common, node, child)
            node = child
        return Match(node.position, node, None)

    def deepest(self, tokens: Sequence[int], limit: int) -> Node[S, B] | None:
        """Return the deepest node with a state at position `limit` or before."""
        for node in reversed(self.match(tokens).node.path):
            if node.state is not None and node.position <= limit:
                return node
        return None

    def known(self, tokens: Sequence[int]) -> tuple[BufferSpan[B], ...]:
        match = self.match(tokens)
        edge_spans = () if match.into is None else split_spans(match.into.spans, match.length - match.node.position)[0]
        return match.node.all_spans + edge_spans

    def insert(self, tokens: Sequence[int], state: S, spans: Sequence[BufferSpan[B]]) -> Node[S, B]:
        """Insert a state after tokens.

        Raises:
            TreeError: an existing state, no token, or another length of spans; nothing has changed.
        """
        tokens, match = tuple(tokens), self.match(tokens)
        count, missing = sum(span.count for span in spans), len(tokens) - match.length
        if not tokens:
            raise TreeError("a state after no tokens is not kept: sequences begin with it")
        if match.into is None and not missing and match.node.state is not None:
            raise TreeError(f"there is a state after these {len(tokens)} tokens; remove it first")
        if count != (missing if self._grows else 0):
            raise TreeError(
                f"the tree knows {match.length} of {len(tokens)} tokens: expected spans of "
                f"{missing if self._grows else 0}, got spans of {count}"
            )
        node = match.node if match.into is None else self._split(match.into, match.length - match.node.position)
        if missing:
            self._uses.update(span.buffer for span in spans)
            child = Node(tokens[match.length :], tuple(spans), node)
            node.children[child.tokens[0]] = node = child
        node.state = state
        return node

    def remove(self, node: Node[S, B]) -> list[B]:
        """Remove a state and edges without other states; return the edges' buffers.

        Raises:
            TreeError: it has no state, or is no longer a node of this tree.
        """
        if node.state is None:
            raise TreeError(f"a node at position {node.position} has no state that could be removed")
        node.state = None
        freed: list[B] = []
        while node.parent is not None and node.state is None and len(node.children) < 2:
            parent = node.parent
            if node.children:
                (child,) = node.children.values()
                self._join(node, child)
                break
            del parent.children[node.tokens[0]]
            for span in node.spans:
                freed += self._unused(span.buffer)
            node = parent
        return freed

    def nodes(self) -> Iterator[Node[S, B]]:
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def buffers(self) -> set[B]:
        """Return all buffers that edges refer to."""
        return set(self._uses)

    def check_integrity(self) -> None:
        """Raise TreeError with all faults of edges, spans, states and reference counts."""
        faults, uses = [], Counter[B]()
        for node in self.nodes():
            where, parent = f"node at position {node.position}", node.parent
            assert parent is not None
            if not node.tokens or node.position != parent.position + len(node.tokens):
                faults.append(f"{where}: {len(node.tokens)} tokens after position {parent.position}")
            elif parent.children.get(node.tokens[0]) is not node:
                faults.append(f"{where}: its parent does not know it")
            if sum(span.count for span in node.spans) != (len(node.tokens) if self._grows else 0):
                faults.append(f"{where}: spans {node.spans} of {len(node.tokens)} tokens")
            if node.state is None and len(node.children) < 2:
                faults.append(f"{where}: no state and {len(node.children)} children")
            uses.update(span.buffer for span in node.spans)
        if uses != self._uses:
            faults.append(f"buffers are counted {self._uses}, used {uses}")
        if faults:
            raise TreeError("; ".join(faults))

    def _split(self, node: Node[S, B], count: int) -> Node[S, B]:
        parent, (first, rest) = node.parent, split_spans(node.spans, count)
        assert parent is not None
        middle: Node[S, B] = Node(node.tokens[:count], first, parent)
        parent.children[middle.tokens[0]] = middle
        self._uses.update(span.buffer for span in (*first, *rest))
        self._uses.subtract(span.buffer for span in node.spans)
        node.tokens, node.spans, node.parent = node.tokens[count:], rest, middle
        middle.children[node.tokens[0]] = node
        return middle

    def _join(self, node: Node[S, B], child: Node[S, B]) -> None:
        parent, spans = node.parent, [*node.spans]
        assert parent is not None
        for span in child.spans:
            if spans and spans[-1].buffer is span.buffer and spans[-1].first + spans[-1].count == span.first:
                spans[-1] = spans[-1]._replace(count=spans[-1].count + span.count)
                self._uses[span.buffer] -= 1
            else:
                spans.append(span)
        child.tokens, child.spans, child.parent = node.tokens + child.tokens, tuple(spans), parent
        parent.children[child.tokens[0]] = child

    def _unused(self, buffer: B) -> list[B]:
        self._uses[buffer] -= 1
        if self._uses[buffer]:
            return []
        del self._uses[buffer]
        return [buffer]


def split_spans(
    spans: Sequence[BufferSpan[B]], count: int
) -> tuple[tuple[BufferSpan[B], ...], tuple[BufferSpan[B], ...]]:
    """Split spans after `count` tokens; an empty span begins an edge."""
    first, rest = [], []
    for span in spans:
        head = min(max(count, 0), span.count)
        first += [span._replace(count=head)] if head or not span.count else []
        rest += [BufferSpan(span.buffer, span.first + head, span.count - head)] if head < span.count else []
        count -= head
    return tuple(first), tuple(rest)


def common_length(sequence: T, other_sequence: T) -> int:
    low, high = 0, min(len(sequence), len(other_sequence))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sequence[low:middle] == other_sequence[low:middle] else (low, middle - 1)
    return low
