"""Comparison of two models: distances of their distributions at each position."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from hybridlm.devices.sharded_step import sharded
from hybridlm.engine.engine import Engine
from hybridlm.engine.reading import QueuedText, Reading
from hybridlm.programs.stored_programs import types_of
from hybridlm.scoring.scorer import prefilled, step_lanes
from hybridlm.steps.divergence import DIVERGENCE_CONTRACT, Divergences, divergence_step
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Structure
from ir_passes import Certificate, CompiledStep


@dataclass(frozen=True)
class Divergence:
    """Distance between two models on texts, over the whole vocabulary.

    Entries `offsets[i]` to `offsets[i + 1]` belong to text i. The first token of a text has nan and a False `same_top`.

    Attributes:
        token_ids: int32 [E].
        kl: float32 [E], KL(P || Q) in nats; P is this model, Q the other.
        reverse_kl: float32 [E], KL(Q || P) in nats.
        js: float32 [E], Jensen-Shannon divergence in nats, at most log 2.
        same_top: bool [E], equal most likely tokens.
        offsets: int64 [texts + 1].
        certificate: of the comparing step; None without a step.
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
        """Indices of predicted tokens: all but the first of each text."""
        first = np.zeros(len(self.token_ids), bool)
        first[self.offsets[:-1]] = True
        return np.flatnonzero(~first)

    @property
    def mean_kl(self) -> float | None:
        """Mean of `kl` over predicted tokens, in float64; None without any."""
        return self._mean(self.kl)

    @property
    def mean_reverse_kl(self) -> float | None:
        """Mean of `reverse_kl` over predicted tokens."""
        return self._mean(self.reverse_kl)

    @property
    def mean_js(self) -> float | None:
        """Mean of `js` over predicted tokens."""
        return self._mean(self.js)

    @property
    def agreement(self) -> float | None:
        """Share of predicted tokens with equal most likely tokens."""
        return self._mean(self.same_top)

    def of(self, text: int) -> dict[str, Any]:
        """Return one text's arrays and means over its predicted tokens."""
        span = slice(int(self.offsets[text]), int(self.offsets[text + 1]))
        arrays = {name: getattr(self, name)[span] for name in ("token_ids", "kl", "reverse_kl", "js", "same_top")}
        single = Divergence(**arrays, offsets=np.array([0, span.stop - span.start]))
        means = {"mean_kl": single.mean_kl, "mean_reverse_kl": single.mean_reverse_kl, "mean_js": single.mean_js}
        return {**arrays, **means, "agreement": single.agreement}

    def _mean(self, values: np.ndarray) -> float | None:
        return float(np.mean(values[self.predicted], dtype=np.float64)) if len(self.predicted) else None


ComparedModel = tuple[Engine, Structure]
"""One of two models in a comparison."""


@dataclass(eq=False)
class ComparedText(QueuedText):
    """A text of the first model, with a twin in the second model's same lane."""

    question: None = None
    query: None = None
    twin: QueuedText = field(init=False)
    distances: Divergences = field(init=False)

    def __post_init__(self) -> None:
        self.twin = QueuedText(self.index, self.tokens, parent=None if self.parent is None else self.parent.twin)
        self.distances = _empty(len(self.tokens))

    @property
    def copies(self) -> Sequence[QueuedText]:
        """The text in the rows of each model; one row if a model is both."""
        return (self, self.twin)[: len(self.reading.engines)]

    def take(self, outputs: Divergences, lane: int, first: int, count: int) -> None:
        self.check([numbers[lane, :count] for numbers in outputs[:3]], first)
        for array, lanes in zip(self.distances, outputs, strict=True):
            array[first : first + count] = lanes[lane, :count]

    def results(self) -> dict[str, np.ndarray]:
        return self.distances._asdict()

    def finish(self) -> None:
        super().finish()
        if self.parent is not None:
            for array, shared in zip(self.distances, self.parent.distances, strict=True):
                array[: len(shared)] = shared


_PROGRAMS: weakref.WeakKeyDictionary[Engine, dict[Any, CompiledStep]] = weakref.WeakKeyDictionary()
"""Compiled comparisons, by the first model's engine and all argument types."""


def compare(
    sides: Sequence[ComparedModel], texts: Sequence[tuple[int, ...]], full_lanes: bool = False
) -> tuple[Divergence, dict[int, int]]:
    """Return the distances, and by text the first token without finite numbers.

    The first model sets the step widths. Common prefixes are prefilled once, in whole steps. A text has the same bits
    alone, in steps of this shape.

    Args:
        sides: on the same devices.
        texts: within the context of both.

    Raises:
        IsolationError, AuditError, HloError: a step is refused.
    """
    programs: dict[int, CompiledStep] = {}

    engines = list(dict.fromkeys(engine for engine, _ in sides))

    def combine(outputs: Sequence[Any]) -> Divergences:
        hidden = [outputs[engines.index(engine)] for engine, _ in sides]
        arguments = (*(engine.params for engine, _ in sides), *hidden)
        width = hidden[0].shape[1]
        if width not in programs:
            programs[width] = _program(sides, arguments)
        return programs[width](*arguments)[0]

    predicted = {i: text for i, text in enumerate(texts) if len(text) > 1}
    distances, wrong = [_empty(len(text)) for text in texts], dict[int, int]()
    if predicted:
        lanes = step_lanes(engines, len(predicted), full_lanes)
        reading: Reading[ComparedText] = Reading(
            engines, lanes, lambda batch, lanes, feeds: StepInputs(batch), combine=combine
        )
        for text in prefilled(reading, predicted, ComparedText):
            assert text.index is not None
            distances[text.index] = text.distances
            if text.first_wrong is not None:
                wrong[text.index] = text.first_wrong
    certificate = programs[max(programs)].certificate if programs else None
    return _joined(texts, distances, certificate), wrong


def _joined(
    texts: Sequence[tuple[int, ...]], distances: Sequence[Divergences], certificate: Certificate | None
) -> Divergence:
    tokens = np.array([token for text in texts for token in text], np.int32)
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    kl, reverse_kl, js, same_top = (np.concatenate(each) for each in zip(_empty(0), *distances, strict=True))
    return Divergence(tokens, kl, reverse_kl, js, same_top, offsets, certificate)


def _empty(count: int) -> Divergences:
    numbers: list[Any] = [np.full(count, np.nan, np.float32) for _ in range(3)]
    return Divergences._make([*numbers, np.zeros(count, bool)])


def _program(sides: Sequence[ComparedModel], arguments: tuple[Any, ...]) -> CompiledStep:
    leaves, tree = jax.tree.flatten(arguments)
    (engine, structure), (_, other) = sides
    key = (structure, other, tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
    steps = _PROGRAMS.setdefault(engine, {})
    if key not in steps:
        step, types = divergence_step(structure, other), types_of(arguments)
        if engine.placement.mesh is not None:
            step = sharded(step, types, DIVERGENCE_CONTRACT, engine.placement.mesh)
        steps[key] = engine.programs.compile_unshaped(step, types, DIVERGENCE_CONTRACT)
    return steps[key]
