"""Order of the texts of a scoring call; common prefixes are prefilled once.

`shared_prefixes` finds common prefixes; `ScoringQueue` has the next text or prefix.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Generic, NamedTuple

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probing import StepReads
from hybridlm.engine.widths import text_widths
from hybridlm.prefix_cache.radix_tree import RadixTree
from hybridlm.requests.probes import Probe
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.text import QueuedText, ScoredText, T

Questions = Any
"""A `Question` or `Reading`: `key(text, begin, end)` is equal for tokens with equal questions."""


class ScoringQueue(Generic[T]):
    """Texts and shared prefixes that wait for a lane.

    Texts wait until their shared prefix has been prefilled, and then go first, so that its state is released soon.
    Prefixes hold at most `limit` states; one is reserved for nested prefixes. A nested prefix can always begin and no
    prefix waits for later texts, so there is no deadlock.

    Args:
        texts: by number.
        prefix: common beginning of all texts, prefilled by the caller.
        widths: descending; shared prefixes are whole steps.
        limit: maximum states of shared prefixes, at least 2; 0 shares none.
    """

    def __init__(
        self,
        texts: Mapping[int, tuple[int, ...]],
        prefix: Prefix | None,
        widths: tuple[int, ...],
        limit: int,
        question: Questions | None = None,
        make: Callable[..., T] = ScoredText,
        probes: Sequence[Probe | None] | None = None,
    ):
        self._most, self._held = limit, 0
        begin = 0 if prefix is None else prefix.snapshot.label.position
        numbers = list(texts)
        keys = None if question is None else [partial(question.key, i) for i in numbers]
        prefixes, places = [], [None] * len(texts)
        if limit:
            prefixes, places = shared_prefixes(list(texts.values()), widths, begin, keys)
        queries = dict.fromkeys(numbers) if question is None else {i: question.texts[i] for i in numbers}
        waiting: list[T] = []
        for shared in prefixes:
            parent = None if shared.parent is None else waiting[shared.parent]
            query = queries[numbers[shared.first]]
            waiting.append(make(None, shared.tokens, prefix, parent, question=question, query=query))
        place_of = dict(zip(texts, places, strict=True))
        for i in sorted(texts, key=lambda i: -len(texts[i])):  # the longest first
            parent = None if (place := place_of[i]) is None else waiting[place]
            probe = None if probes is None else probes[i]
            waiting.append(make(i, texts[i], prefix, parent, question=question, query=queries[i], probe=probe))
        self._prefixes: deque[T] = deque()
        self._texts: deque[T] = deque()
        for text in waiting:
            if text.parent is not None:
                text.parent.children.append(text)
            elif text.index is None:
                self._prefixes.append(text)
            else:
                self._texts.append(text)
        self._left = len(waiting)

    def __bool__(self) -> bool:
        return self._left > 0

    def take(self, fits: Callable[[T], Sequence[int]]) -> T | None:
        """Return the next text or prefix; None if no device has room for it.

        None, too, if all wait for prefixes in lanes.

        Args:
            fits: text -> devices with a row and pages for it.
        """
        following = self._texts
        if not (self._texts and self._texts[0].parent is not None) and self._prefixes:
            room = self._most - self._held - (self._prefixes[0].parent is None)
            if room > 0:
                following = self._prefixes
        if not following or not fits(following[0]):
            return None
        self._held += following is self._prefixes
        self._left -= 1
        return following.popleft()

    def begun(self, text: T) -> None:
        """Release a shared prefix's state after its last child, `text`, has copied it."""
        if text.parent is not None:
            text.parent.children.remove(text)
            if not text.parent.children:
                for copy in text.parent.copies:
                    copy.snapshot = None
                self._held -= 1

    def prefilled(self, shared: T) -> None:
        """Let the children of a prefilled prefix begin."""
        self._texts.extendleft(text for text in reversed(shared.children) if text.index is not None)
        self._prefixes.extendleft(text for text in reversed(shared.children) if text.index is None)


class SharedPrefix(NamedTuple):
    """A common beginning of several texts.

    Attributes:
        tokens: prefilled tokens from the first on, and the next token.
        parent: index of the shared prefix that it continues, or None.
        first: index of its first text.
    """

    tokens: tuple[int, ...]
    parent: int | None
    first: int


def shared_prefixes(
    texts: Sequence[tuple[int, ...]],
    widths: tuple[int, ...],
    begin: int,
    keys: Sequence[Callable[[int, int], Any]] | None = None,
) -> tuple[list[SharedPrefix], list[int | None]]:
    """Find common prefixes of two or more texts, in whole steps.

    Steps are the same as without sharing. Texts share a prefix's tokens and the next one, which it predicts; each text
    has more to prefill. Of nested prefixes the outermost and the innermost are kept, so that two states suffice.

    Args:
        widths: descending.
        begin: start of the first step, behind the same tokens in all texts.
        keys: per text, (first token, end) -> key that must be equal, too.

    Returns:
        Prefixes, each behind its parent, and the prefix index of each text.
    """
    # A radix tree over the numbers of steps, each with the token behind it. The state of a node: texts that end there.
    numbers: dict[Any, int] = {}
    tree: RadixTree[list[int], Any] = RadixTree(grows=False)
    ends = [list(accumulate(text_widths(len(text) - 1 - begin, widths), initial=begin)) for text in texts]
    for i, text in enumerate(texts):
        # Every text keeps something to prefill, so its last shared step ends before its last token but one.
        spans = [(start, end) for start, end in pairwise(ends[i]) if end < len(text) - 1]
        steps = [
            # A step predicts the tokens from its second one on, and the one behind it.
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
            prefixes.append(SharedPrefix(texts[first][: ends[first][node.position] + 1], above, first))
            above = len(prefixes) - 1
        prefix_at[node] = above
        for i in node.state or ():
            prefix_of[i] = above
    return prefixes, prefix_of


Models = Sequence[tuple[Engine, RowPool]]
"""Models in lockstep, each with its rows."""


class TextPart(NamedTuple, Generic[T]):
    """Part of a text in one step.

    Attributes:
        first, count: `count` predicted tokens from `first` on; the step begins one token earlier.
    """

    lane: int
    text: T
    first: int
    count: int
    reads: StepReads | None
    last: bool


def widest_step(lanes: Sequence[T | None], widths: tuple[int, ...]) -> tuple[int, list[T | None]]:
    """Return the width of the widest next step and its texts by lane."""
    width = max(text.width(widths) for text in lanes if text is not None)
    return width, [None if text is None or text.width(widths) < width else text for text in lanes]


def may_begin(lanes: Sequence[QueuedText | None], widths: tuple[int, ...]) -> bool:
    """Return whether texts may take free lanes: all texts take widest steps.

    A new text has the widest steps ahead; lanes at narrower steps would be idle meanwhile.
    """
    return all(text is None or text.width(widths) == widths[0] for text in lanes)


def max_held(engine: Engine, lanes: int) -> int:
    """Return the maximum number of states of shared prefixes.

    One for each lane and one for a nested prefix, at least two, and at most the rows of a device: the memory of those
    rows was reserved at load and is free during scoring. Free memory does not count, so that the steps of a text depend
    on texts and settings alone.
    """
    return max(2, min(lanes + 1, engine.lanes // engine.placement.data))


def devices_for(models: Models, text: QueuedText) -> list[int]:
    """Return the devices with a row and pages for a text in each model.

    Without any text in the lanes there is one: longer texts have been refused.
    """
    devices, *others = (pool.devices_for(copy.end) for (_, pool), copy in zip(models, text.copies, strict=True))
    ready = [device for device in devices if all(device in other for other in others)]
    return ready if models[0][1].owner.held else ready or [0]


def enter(models: Models, text: QueuedText) -> int:
    """Acquire a text's row of each model, restore its state, and return its lane.

    Raises:
        SlotsExhausted: a row or pages are missing.
    """
    lanes, (device, *_) = set[int](), devices_for(models, text)
    for (engine, pool), copy in zip(models, text.copies, strict=True):
        copy.slot = pool.acquire(copy.end, device)
        if copy.start is not None:
            copy.consumed = engine.moves.restore(copy.start, pool, copy.slot, copy.tokens, owner=copy)
        lanes.update(pool.rows_of([copy.slot]))
    (lane,) = lanes  # a lane has the row of its number; rows of all pools are taken and released in the same order
    return lane


def leave(models: Models, text: QueuedText) -> None:
    """Release the rows of a finished text; keep the states after a shared prefix."""
    for (engine, pool), copy in zip(models, text.copies, strict=True):
        if copy.slot is None:
            continue
        if copy.index is None:
            spans = () if copy.start is None else copy.start.spans
            copy.snapshot = engine.moves.take(pool, copy.slot, copy.tokens[:-1], owner=copy, cached=spans)
            # Each restore adds the whole prefix to the statistic, but it was computed once.
            engine.stats["prefix_tokens_saved"] -= copy.consumed
        pool.release(copy.slot)
        copy.slot = None
        engine.runner.forget(copy)
