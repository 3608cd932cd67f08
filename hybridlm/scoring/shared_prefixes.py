"""Common prefixes of the texts of a call, prefilled once."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from hybridlm.engine.prefix import Prefix
from hybridlm.engine.reading import Reading, T
from hybridlm.engine.widths import text_widths
from hybridlm.prefix_cache.radix_tree import RadixTree
from hybridlm.requests.probes import Probe

Questions = Any
"""A `Question` or `Places`: `key(text, begin, end)` is equal for tokens with equal questions."""


def texts_to_read(
    reading: Reading[Any],
    texts: Mapping[int, tuple[int, ...]],
    make: Callable[..., T],
    prefix: Prefix | None = None,
    question: Questions | None = None,
    probes: Sequence[Probe | None] | None = None,
) -> list[T]:
    """Return a reading's texts in order: shared prefixes, then the longest texts.

    Args:
        make: for a text or shared prefix.
    """
    begin = 0 if prefix is None else prefix.snapshot.position
    numbers = list(texts)
    keys = None if question is None else [partial(question.key, i) for i in numbers]
    prefixes, places = [], [None] * len(texts)
    if reading.max_states:
        prefixes, places = shared_prefixes(list(texts.values()), reading.widths, begin, keys)
    queries = dict.fromkeys(numbers) if question is None else {i: question.texts[i] for i in numbers}
    queued: list[T] = []
    for tokens, above, first in prefixes:
        parent = None if above is None else queued[above]
        queued.append(make(None, tokens, prefix, parent, question=question, query=queries[numbers[first]]))
    place_of = dict(zip(texts, places, strict=True))
    for i in sorted(texts, key=lambda i: -len(texts[i])):
        parent = None if (place := place_of[i]) is None else queued[place]
        probe = None if probes is None else probes[i]
        queued.append(make(i, texts[i], prefix, parent, question=question, query=queries[i], probe=probe))
    return queued


SharedPrefix = tuple[tuple[int, ...], int | None, int]
"""Prefilled tokens and the next one, the index of the continued shared prefix, and the first text with it."""


def shared_prefixes(
    texts: Sequence[tuple[int, ...]],
    widths: tuple[int, ...],
    begin: int,
    keys: Sequence[Callable[[int, int], Any]] | None = None,
) -> tuple[list[SharedPrefix], list[int | None]]:
    """Find common prefixes of two or more texts, in whole steps.

    Steps are the same as without sharing. Texts share a prefix's tokens and the next one, which it predicts; each has
    more to prefill. Of nested prefixes the outermost and the innermost are kept: two states suffice.

    Args:
        widths: descending.
        begin: start of the first step, after the same tokens in all texts.
        keys: per text, (first token, end) -> key that must be equal, too.

    Returns:
        Prefixes, each after its parent, and the prefix index of each text.
    """
    # A radix tree: an edge is a step of a text and the next token, a node has the texts that end there.
    numbers: dict[Any, int] = {}
    tree: RadixTree[list[int], Any] = RadixTree(grows=False)
    ends = [list(accumulate(text_widths(len(text) - 1 - begin, widths), initial=begin)) for text in texts]
    for i, text in enumerate(texts):
        # Every text keeps something to prefill, so its last shared step ends before its last token but one.
        spans = [(start, end) for start, end in pairwise(ends[i]) if end < len(text) - 1]
        steps = [
            # A step predicts the tokens from its second one on, and the one after it.
            numbers.setdefault((text[start : end + 1], keys and keys[i](start + 1, end + 1)), len(numbers))
            for start, end in spans
        ]
        match = tree.match(steps)
        if match.length == len(steps) and match.into is None and match.node.state is not None:
            match.node.state.append(i)
        elif steps:
            tree.insert(steps, [i], ())
    nodes = sorted(tree.nodes(), key=lambda node: node.position)
    counts, firsts = dict[Any, int](), dict[Any, int]()  # texts at a node and below it, and the first of them
    for node in reversed(nodes):
        ending, children = node.state or [], node.children.values()
        counts[node] = len(ending) + sum(counts[child] for child in children)
        firsts[node] = min([*ending, *(firsts[child] for child in children)])
    prefixes: list[SharedPrefix] = []
    prefix_at: dict[Any, int | None] = {tree.root: None}
    prefix_of: list[int | None] = [None] * len(texts)
    for node in sorted(nodes, key=lambda node: (firsts[node], node.position)):
        above = prefix_at[node.parent]
        innermost = not any(counts[child] > 1 for child in node.children.values())
        if counts[node] > 1 and (above is None or innermost):
            first = firsts[node]
            prefixes.append((texts[first][: ends[first][node.position] + 1], above, first))
            above = len(prefixes) - 1
        prefix_at[node] = above
        for i in node.state or ():
            prefix_of[i] = above
    return prefixes, prefix_of
