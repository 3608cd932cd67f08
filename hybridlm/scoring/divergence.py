"""Comparison of two models: how far the distributions of each position of texts are from one another."""

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.devices.sharded_step import sharded
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape
from hybridlm.programs.stored_programs import types_of
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.distances import Divergence
from hybridlm.scoring.finished import KeptTexts
from hybridlm.scoring.lanes import enter, leave, may_begin, widest_step
from hybridlm.scoring.queue import ScoringQueue
from hybridlm.scoring.scorer import max_held
from hybridlm.scoring.text import QueuedText
from hybridlm.steps.divergence import DIVERGENCE_CONTRACT, Divergences, divergence_step
from hybridlm.steps.operands import Batch, StepInputs
from hybridlm.steps.structure import Structure
from ir_passes import Certificate, CompiledStep, compile_step
from ir_passes.rewrites import DropDead


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

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays of results by name."""
        return self.found._asdict()

    def finish(self) -> None:
        """Copy the positions that were computed with the text that this one continues."""
        super().finish()
        if self.parent is not None:
            for own, shared in zip(self.found, self.parent.found, strict=True):
                own[: len(shared)] = shared


_PROGRAMS: weakref.WeakKeyDictionary[Engine, dict[Any, CompiledStep]] = weakref.WeakKeyDictionary()
"""Compiled comparisons, by the first model's engine and the types of all arguments."""


def compare(
    sides: tuple[ComparedModel, ComparedModel], texts: Sequence[tuple[int, ...]], full_lanes: bool = False
) -> tuple[Divergence, dict[int, int]]:
    """Return the distances of two models, and the first token without finite numbers by text.

    Each text has a lane of its own in both; steps are those of the first one. A common prefix of several texts is
    prefilled once in both, in whole steps. A text has the same bits in every company, in steps of the same shape.

    Args:
        sides: the models, on the same devices.
        texts: token ids, which fit the context of both.
        full_lanes: use all lanes for any number of texts.

    Raises:
        IsolationError, AuditError, HloError: a step is refused (see `compile_step`).
    """
    found = [_arrays(len(text)) for text in texts]
    predicted = {i: text for i, text in enumerate(texts) if len(text) > 1}
    certificate, wrong = None, dict[int, int]()
    storage = None if sides[0].engine.finished is None else KeptTexts(sides[0].engine.finished)
    if storage is not None:
        for i, text in storage.restored(predicted, lambda i: ComparedText(i, predicted[i])).items():
            found[i] = text.found
            if text.first_wrong is not None:
                wrong[i] = text.first_wrong
            del predicted[i]
    if predicted:
        most = min(side.engine.prefill_rows for side in sides)
        size = max(side.engine.bucket(most if full_lanes else len(predicted), most) for side in sides)
        held = min(max_held(side.engine, size) for side in sides)
        waiting = ScoringQueue(predicted, None, sides[0].engine.widths, held, make=ComparedText)
        pools: list[RowPool] = []
        try:
            for side in sides:
                if waiting.shares:
                    side.engine.give_up("decode")
                pools.append(side.engine.borrow("prefill", size))
            certificate = _compare(sides, pools, waiting, found, wrong, storage)
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
    storage: KeptTexts | None,
) -> Certificate:
    """Run the steps of both models until every text is compared, and fill `found` and `wrong`."""
    widths = sides[0].engine.widths
    lanes: list[ComparedText | None] = [None] * pools[0].size
    flights: deque[tuple[Divergences, list[_Part]]] = deque()
    programs: dict[int, CompiledStep] = {}
    while flights or waiting or any(lanes):
        begins = may_begin(lanes, widths)
        while begins and pools[0].owner.free and (text := waiting.take()) is not None:
            _join(sides, pools, lanes, text)
            waiting.begun(text)
            if text.parent is not None and text.parent.snapshot is None:
                text.parent.twin.snapshot = None  # nobody waits for the state in the second model either
        if any(lanes):
            width, active = widest_step(lanes, widths)
            hidden, parts = _dispatch(sides, pools, lanes, active, waiting, width)
            arguments = (sides[0].engine.params, sides[1].engine.params, *hidden)
            if width not in programs:
                programs[width] = _program(sides, arguments)
            (outputs,) = programs[width](*arguments)
            flights.append((outputs, parts))
        while len(flights) > 1 or (flights and not any(lanes)):
            outputs, parts = flights.popleft()
            read = Divergences._make(jax.device_get(outputs))
            for lane, text, first, count, last in parts:
                text.take(read, lane, first, count)
                sides[0].engine.stats["scored_tokens"] += count
                if last:
                    text.finish()
                    if text.index is not None:
                        found[text.index] = text.found
                        if text.first_wrong is not None:
                            wrong[text.index] = text.first_wrong
                        if storage is not None:
                            storage.add(text)
    return programs[max(programs)].certificate


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
    active: list[ComparedText | None],
    waiting: ScoringQueue[ComparedText],
    width: int,
) -> tuple[list[Any], list[_Part]]:
    """Dispatch a step of each model; return their residual streams, and the part of each active text."""
    feeds = [None if text is None else text.feed(width) for text in active]
    inputs = StepInputs(Batch.of(feeds, width))
    shape, counts = Shape.of(inputs), np.asarray(inputs.batch.lengths)
    owners = [active, [None if text is None else text.twin for text in active]]
    hidden = [
        side.engine.run(shape, pool, inputs, owners=mine, counts=counts)
        for side, pool, mine in zip(sides, pools, owners, strict=True)
    ]
    parts: list[_Part] = []
    for lane, (text, feed) in enumerate(zip(active, feeds, strict=True)):
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
