"""Comparison of two models: how far the distributions of each position of texts are from one another."""

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.devices.sharded_step import sharded
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape
from hybridlm.programs.stored_programs import types_of
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.queue import ScoringQueue
from hybridlm.scoring.scorer import enter, leave, max_held
from hybridlm.scoring.text import QueuedText
from hybridlm.steps.divergence import DIVERGENCE_CONTRACT, Divergences, divergence_step
from hybridlm.steps.operands import Batch, StepInputs
from hybridlm.steps.structure import Structure
from ir_passes import Certificate, CompiledStep, compile_step
from ir_passes.rewrites import DropDead


@dataclass(frozen=True)
class Divergence:
    """Distance between two models on texts; entries `offsets[i]` to `offsets[i + 1]` belong to text i.

    An entry is about the distribution in the place of one token, over the whole vocabulary. Nothing predicts the first
    token of a text: its numbers are nan, and its `same_top` False.

    Attributes:
        token_ids: int32 [E], the tokens of all texts.
        kl: float32 [E], KL(P || Q) in nats, where P is this model's distribution and Q the other one's.
        reverse_kl: float32 [E], KL(Q || P) in nats.
        js: float32 [E], Jensen-Shannon divergence in nats, at most log 2.
        same_top: bool [E], whether both have the same most likely token.
        offsets: int64 [texts + 1].
        certificate: of the step that compared them; None if nothing was compared.
    """

    token_ids: np.ndarray
    kl: np.ndarray
    reverse_kl: np.ndarray
    js: np.ndarray
    same_top: np.ndarray
    offsets: np.ndarray
    certificate: Certificate | None = field(default=None, repr=False, compare=False)

    @cached_property
    def predicted(self) -> np.ndarray:
        """Indices of the entries of tokens that are predicted: all but the first of each text."""
        first = np.zeros(len(self.token_ids), bool)
        first[self.offsets[:-1]] = True
        return np.flatnonzero(~first)

    @property
    def mean_kl(self) -> float | None:
        """Mean of `kl` over the predicted tokens, in float64; None without any."""
        return self._mean(self.kl)

    @property
    def mean_reverse_kl(self) -> float | None:
        """Mean of `reverse_kl` over the predicted tokens."""
        return self._mean(self.reverse_kl)

    @property
    def mean_js(self) -> float | None:
        """Mean of `js` over the predicted tokens."""
        return self._mean(self.js)

    @property
    def agreement(self) -> float | None:
        """Share of the predicted tokens in whose place both models have the same most likely token."""
        return self._mean(self.same_top)

    def of(self, text: int) -> dict[str, Any]:
        """Return what was found about one text: its arrays, and the means over its predicted tokens."""
        own = slice(int(self.offsets[text]), int(self.offsets[text + 1]))
        arrays = {name: getattr(self, name)[own] for name in ("token_ids", "kl", "reverse_kl", "js", "same_top")}
        one = Divergence(**arrays, offsets=np.array([0, own.stop - own.start]))
        means = {"mean_kl": one.mean_kl, "mean_reverse_kl": one.mean_reverse_kl, "mean_js": one.mean_js}
        return {**arrays, **means, "agreement": one.agreement}

    def _mean(self, values: np.ndarray) -> float | None:
        return float(np.mean(values[self.predicted], dtype=np.float64)) if len(self.predicted) else None


class ComparedModel(NamedTuple):
    """One of two models that are compared."""

    engine: Engine
    structure: Structure


@dataclass(eq=False)
class ComparedText(QueuedText):
    """A text while it is compared, in a row of the first model; it has the same lane in both.

    Attributes:
        question, asked: None; what is found is the same for all texts.
        twin: the text in a row of the second model.
        found: arrays of its tokens.
    """

    question: None = None
    asked: None = None
    twin: QueuedText = field(init=False)
    found: Divergences = field(init=False)

    def __post_init__(self) -> None:
        self.twin = QueuedText(self.index, self.tokens, parent=None if self.parent is None else self.parent.twin)
        self.found = _arrays(len(self.tokens))

    def take(self, outputs: Divergences, lane: int, first: int, count: int) -> None:
        """Store `count` positions of a lane's outputs from position `first` on."""
        self.check([numbers[lane, :count] for numbers in outputs[:3]], first)
        for own, all_lanes in zip(self.found, outputs, strict=True):
            own[first : first + count] = all_lanes[lane, :count]

    def finish(self) -> None:
        """Copy the positions that were computed with the text that this one continues."""
        super().finish()
        if self.parent is not None:
            for own, shared in zip(self.found, self.parent.found, strict=True):
                own[: len(shared)] = shared


_PROGRAMS: weakref.WeakKeyDictionary[Engine, dict[Any, CompiledStep]] = weakref.WeakKeyDictionary()
"""Compiled comparisons, by the first model's engine and the types of all arguments."""


def compare(
    sides: tuple[ComparedModel, ComparedModel], texts: Sequence[tuple[int, ...]]
) -> tuple[Divergence, dict[int, int]]:
    """Return the distances of two models, and the first token without finite numbers by text.

    Each text has a lane of its own in both; chunks are those of the first one. A common prefix of several texts is
    prefilled once in both, in whole chunks. A text has the same bits in every company, in steps of the same shape.

    Args:
        sides: the models, on the same devices.
        texts: token ids, which fit the context of both.

    Raises:
        IsolationError, AuditError, HloError: a step is refused (see `compile_step`).
    """
    found = [_arrays(len(text)) for text in texts]
    predicted = {i: text for i, text in enumerate(texts) if len(text) > 1}
    certificate, wrong = None, dict[int, int]()
    if predicted:
        most = min(side.engine.prefill_rows for side in sides)
        size = max(side.engine.bucket(len(predicted), most) for side in sides)
        held = min(max_held(side.engine, size) for side in sides)
        waiting = ScoringQueue(predicted, None, sides[0].engine.chunk, held, make=ComparedText)
        pools: list[RowPool] = []
        try:
            for side in sides:
                if waiting.shares:
                    side.engine.give_up("decode")
                pools.append(side.engine.borrow("prefill", size))
            certificate = _compare(sides, pools, waiting, found, wrong)
        finally:
            for side, pool in zip(sides, pools, strict=False):
                side.engine.give_back("prefill", pool)
    return _joined(texts, found, certificate), wrong


def _joined(
    texts: Sequence[tuple[int, ...]], found: Sequence[Divergences], certificate: Certificate | None
) -> Divergence:
    tokens = np.array([token for text in texts for token in text], np.int32)
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    kl, reverse_kl, js, same_top = (np.concatenate(each) for each in zip(_arrays(0), *found, strict=True))
    return Divergence(tokens, kl, reverse_kl, js, same_top, offsets, certificate)


def _arrays(count: int) -> Any:
    """Return host arrays for the results of a text, without any yet."""
    numbers = [np.full(count, np.nan, np.float32) for _ in range(3)]
    return Divergences._make([*numbers, np.zeros(count, bool)])


class _Part(NamedTuple):
    """Tokens of one text that a step compares.

    Attributes:
        lane, text: where, and which.
        first, count: tokens that are predicted.
        last: whether the text ends with them.
    """

    lane: int
    text: ComparedText
    first: int
    count: int
    last: bool


def _compare(
    sides: tuple[ComparedModel, ComparedModel],
    pools: list[RowPool],
    waiting: ScoringQueue[ComparedText],
    found: list[Divergences],
    wrong: dict[int, int],
) -> Certificate:
    """Run the steps of both models until every text is compared, and fill `found` and `wrong`."""
    lanes: list[ComparedText | None] = [None] * pools[0].size
    flights: deque[tuple[Divergences, list[_Part]]] = deque()
    program: CompiledStep | None = None
    while flights or waiting or any(lanes):
        while pools[0].owner.free and (text := waiting.take()) is not None:
            _join(sides, pools, lanes, text)
            waiting.begun(text)
            if text.parent is not None and text.parent.snapshot is None:
                text.parent.twin.snapshot = None  # nobody waits for the state in the second model either
        if any(lanes):
            hidden, parts = _dispatch(sides, pools, lanes, waiting)
            arguments = (sides[0].engine.params, sides[1].engine.params, *hidden)
            program = program or _program(sides, arguments)
            (outputs,) = program(*arguments)
            flights.append((outputs, parts))
        while len(flights) > 1 or (flights and not any(lanes)):
            outputs, parts = flights.popleft()
            read = Divergences._make(jax.device_get(outputs))
            for lane, text, first, count, last in parts:
                text.take(read, lane, first, count)
                if last:
                    text.finish()
                    if text.index is not None:
                        found[text.index] = text.found
                        if text.first_wrong is not None:
                            wrong[text.index] = text.first_wrong
    assert program is not None, "there are texts"
    return program.certificate


def _join(
    sides: tuple[ComparedModel, ComparedModel],
    pools: list[RowPool],
    lanes: list[ComparedText | None],
    text: ComparedText,
) -> None:
    """Give a row of each model to a text; both are the same lane."""
    own = zip(sides, pools, (text, text.twin), strict=True)
    first, second = (enter(side.engine, pool, one) for side, pool, one in own)
    assert first == second, "rows of both pools are taken and released in the same order"
    lanes[first] = text


def _dispatch(
    sides: tuple[ComparedModel, ComparedModel],
    pools: list[RowPool],
    lanes: list[ComparedText | None],
    waiting: ScoringQueue[ComparedText],
) -> tuple[list[Any], list[_Part]]:
    """Dispatch a step of each model; return their residual streams, and the part of each text."""
    chunk = sides[0].engine.chunk
    feeds = [None if one is None else one.feed(chunk) for one in lanes]
    inputs = StepInputs(Batch.of(feeds, chunk))
    shape, counts = Shape.of(inputs), np.asarray(inputs.batch.lengths)
    owners = [list(lanes), [None if one is None else one.twin for one in lanes]]
    hidden = [
        side.engine.run(shape, pool, inputs, owners=mine, counts=counts)
        for side, pool, mine in zip(sides, pools, owners, strict=True)
    ]
    parts: list[_Part] = []
    for lane, (text, feed) in enumerate(zip(lanes, feeds, strict=True)):
        if text is None or feed is None:
            continue
        for one in (text, text.twin):
            one.consumed += len(feed.tokens)
        parts.append(_Part(lane, text, feed.position + 1, len(feed.tokens), text.done))
        if text.done:
            lanes[lane] = None
            for side, pool, one in zip(sides, pools, (text, text.twin), strict=True):
                leave(side.engine, pool, one)
            if text.index is None:
                waiting.prefilled(text)
    return hidden, parts


def _program(sides: tuple[ComparedModel, ComparedModel], arguments: tuple[Any, ...]) -> CompiledStep:
    """Return the compiled comparison of these arguments."""
    leaves, tree = jax.tree.flatten(arguments)
    key = (sides[0].structure, sides[1].structure, tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
    kept = _PROGRAMS.setdefault(sides[0].engine, {})
    if key not in kept:
        programs = sides[0].engine.programs
        step, types = divergence_step(sides[0].structure, sides[1].structure), types_of(arguments)
        mesh = sides[0].engine.placement.mesh
        if mesh is not None:
            step = sharded(step, types, DIVERGENCE_CONTRACT, mesh)
        kept[key] = compile_step(step, types, DIVERGENCE_CONTRACT, passes=(DropDead(),), certify=programs.certify)
    return kept[key]
