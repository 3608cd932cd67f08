"""The radix tree against a dictionary: whatever is inserted and removed, in whatever order."""

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hybridlm.prefix_cache.radix_tree import Node, RadixTree, TreeError, common_length, split_spans
from hybridlm.rows import BufferSpan

Tokens = tuple[int, ...]
# Few ids, so that most sequences begin alike.
SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


class Buffer:
    """Fake buffer of an edge: one token of a sequence per place."""

    def __init__(self, tokens: Tokens):
        self.tokens = tokens


def spelled(spans: Any) -> Tokens:
    return tuple(token for buffer, first, count in spans for token in buffer.tokens[first : first + count])


def pieces_of(tokens: Tokens, size: int) -> list[BufferSpan[Buffer]]:
    """Return new buffers of so many tokens; the first is used from place 1."""
    spans, start = [], 0
    while start < len(tokens):
        padding = () if start else (99,)
        part = tokens[start : start + size - len(padding)]
        spans.append(BufferSpan(Buffer((*padding, *part, 98)), len(padding), len(part)))
        start += len(part)
    return spans


class Machine(RuleBasedStateMachine):
    """A tree, states by tokens, and a reference tree without spans."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: RadixTree[Any, Buffer] = RadixTree()
        self.bare: RadixTree[Any, Buffer] = RadixTree(grows=False)
        self.states: dict[Tokens, object] = {}
        self.seen: list[Buffer] = []

    @rule(tokens=SEQUENCES, size=st.integers(2, 5))
    def insert(self, tokens: Tokens, size: int) -> None:
        length = max((common_length(tokens, key) for key in self.states), default=0)
        assert self.tree.match(tokens).length == length
        assert spelled(self.tree.known(tokens)) == tokens[:length]
        spans = pieces_of(tokens[length:], size)
        if tokens in self.states:
            with pytest.raises(TreeError, match="there is a state after these"):
                self.tree.insert(tokens, object(), spans)
            return
        buffers = self.tree.buffers()
        self.states[tokens] = object()
        node = self.tree.insert(tokens, self.states[tokens], spans)
        self.bare.insert(tokens, self.states[tokens], ())
        assert node.position == len(tokens) and spelled(node.all_spans) == tokens
        assert self.tree.buffers() == buffers | {span.buffer for span in spans}, "nothing is copied"

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if not self.states:
            return
        tokens = data.draw(st.sampled_from(sorted(self.states)))
        node = self.tree.deepest(tokens, len(tokens))
        assert node is not None and node.state is self.states.pop(tokens)
        buffers = self.tree.buffers()
        freed = self.tree.remove(node)
        assert len(freed) == len(set(freed)) and set(freed) == buffers - self.tree.buffers()
        bare = self.bare.deepest(tokens, len(tokens))
        assert bare is not None and self.bare.remove(bare) == []

    @rule(tokens=SEQUENCES, limit=st.integers(0, 12))
    def look_up(self, tokens: Tokens, limit: int) -> None:
        reached = [key for key in self.states if len(key) <= limit and tokens[: len(key)] == key]
        for tree in (self.tree, self.bare):
            node = tree.deepest(tokens, limit)
            assert (None if node is None else node.state) is (self.states[max(reached, key=len)] if reached else None)

    @invariant()
    def is_whole(self) -> None:
        for tree in (self.tree, self.bare):
            tree.check_integrity()
            assert {id(node.state) for node in tree.nodes() if node.state} == {id(s) for s in self.states.values()}
        reached: set[Buffer] = set()
        for tokens, state in self.states.items():
            node = self.tree.deepest(tokens, len(tokens))
            assert node is not None and node.state is state and spelled(node.all_spans) == tokens
            reached |= {span.buffer for span in node.all_spans}
        assert reached == self.tree.buffers(), "what leads to no state is not kept"


class TestTree(Machine.TestCase):
    settings = settings(max_examples=30, stateful_step_count=25)


def test_an_edge_that_is_cut_shares_its_buffer_and_becomes_whole_again() -> None:
    tree: RadixTree[str, Buffer] = RadixTree()
    long = BufferSpan(Buffer((1, 2, 3, 4)), 0, 4)
    tree.insert((1, 2, 3, 4), "long", [long])
    branch = tree.insert((1, 2, 9), "other", [BufferSpan(Buffer((9,)), 0, 1)])
    middle = tree.insert((1, 2), "middle", [])
    assert middle.spans == (BufferSpan(long.buffer, 0, 2),) and len(tree.buffers()) == 2
    assert tree.remove(branch) == [branch.spans[0].buffer] and tree.remove(middle) == []
    (end,) = tree.nodes()
    assert end.spans == (long,) and end.tokens == (1, 2, 3, 4)
    assert tree.remove(end) == [long.buffer] and not tree.buffers() and not list(tree.nodes())


def test_operations_that_break_the_tree_are_refused() -> None:
    tree: RadixTree[str, Buffer] = RadixTree()
    with pytest.raises(TreeError, match="after no tokens is not kept"):
        tree.insert((), "state", [])
    with pytest.raises(TreeError, match="knows 0 of 2 tokens: expected spans of 2, got spans of 1"):
        tree.insert((1, 2), "state", [BufferSpan(Buffer((1,)), 0, 1)])
    node = tree.insert((1,), "state", [BufferSpan(Buffer((1,)), 0, 1)])
    tree.remove(node)
    with pytest.raises(TreeError, match="position 1 has no state"):
        tree.remove(node)
    assert not list(tree.nodes())
    orphan: Node[str, Buffer] = Node((5,), (), tree.root)
    tree.root.children[6] = orphan
    with pytest.raises(TreeError, match=r"does not know it; .*spans \(\) of 1 tokens; .*no state and 0 children"):
        tree.check_integrity()


def test_pieces_are_cut_at_every_token() -> None:
    spans = [BufferSpan(Buffer((9, 0, 1)), 1, 2), BufferSpan(Buffer((2, 3, 4)), 0, 3)]
    for count in range(6):
        first, rest = split_spans(spans, count)
        assert spelled(first) == tuple(range(count)) and spelled(first) + spelled(rest) == tuple(range(5))
        assert all(span.count for span in (*first, *rest))
    for length, suffix in itertools.product(range(4), ((), (1,), (0,))):
        key = tuple(range(length))
        assert common_length(key, (*key, *suffix)) == length
