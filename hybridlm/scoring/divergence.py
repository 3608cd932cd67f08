"""Comparison of two models: distances of their distributions at each position of texts."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.devices.sharded_step import sharded
from hybridlm.engine.engine import Engine
from hybridlm.programs.stored_programs import types_of
from hybridlm.scoring.distances import Divergence
from hybridlm.scoring.scorer import TextStep, prefilled
from hybridlm.scoring.text import QueuedText
from hybridlm.steps.divergence import DIVERGENCE_CONTRACT, Divergences, divergence_step
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Structure
from ir_passes import Certificate, CompiledStep, compile_step
from ir_passes.rewrites import DropDead


class ComparedModel(NamedTuple):
    """One of two models in a comparison."""

    engine: Engine
    structure: Structure


@dataclass(eq=False)
class ComparedText(QueuedText):
    """A text of the first model, with a twin in the second model's same lane.

    Attributes:
        question, query: None; all texts have the same results.
        twin: the text in a row of the second model.
        distances: arrays of its tokens.
    """

    question: None = None
    query: None = None
    twin: QueuedText = field(init=False)
    distances: Divergences = field(init=False)

    def __post_init__(self) -> None:
        self.twin = QueuedText(self.index, self.tokens, parent=None if self.parent is None else self.parent.twin)
        self.distances = _empty(len(self.tokens))

    @property
    def copies(self) -> Sequence[QueuedText]:
        """The text in the rows of both models."""
        return self, self.twin

    def take(self, outputs: Divergences, lane: int, first: int, count: int) -> None:
        """Store `count` positions of a lane's outputs from position `first` on."""
        self.check([numbers[lane, :count] for numbers in outputs[:3]], first)
        for array, lanes in zip(self.distances, outputs, strict=True):
            array[first : first + count] = lanes[lane, :count]

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays of results by name."""
        return self.distances._asdict()

    def finish(self) -> None:
        """Copy the positions of the shared prefix, after all steps."""
        super().finish()
        if self.parent is not None:
            for array, shared in zip(self.distances, self.parent.distances, strict=True):
                array[: len(shared)] = shared


_PROGRAMS: weakref.WeakKeyDictionary[Engine, dict[Any, CompiledStep]] = weakref.WeakKeyDictionary()
"""Compiled comparisons, by the first model's engine and the types of all arguments."""


def compare(
    sides: tuple[ComparedModel, ComparedModel], texts: Sequence[tuple[int, ...]], full_lanes: bool = False
) -> tuple[Divergence, dict[int, int]]:
    """Return the distances of two models, and the first token without finite numbers by text.

    Each text has the same lane in both models; the first model sets the widths of steps. A common prefix of several
    texts is prefilled once in both, in whole steps. A text has the same bits alone, in steps of this shape.

    Args:
        sides: the models, on the same devices.
        texts: token ids that fit the context of both.
        full_lanes: use all lanes for any number of texts.

    Raises:
        IsolationError, AuditError, HloError: a step is refused (see `compile_step`).
    """
    programs: dict[int, CompiledStep] = {}

    def combine(hidden: Sequence[Any]) -> Divergences:
        arguments = (sides[0].engine.params, sides[1].engine.params, *hidden)
        width = hidden[0].shape[1]
        if width not in programs:
            programs[width] = _program(sides, arguments)
        return programs[width](*arguments)[0]

    step: TextStep[ComparedText] = TextStep(lambda batch, lanes, feeds: StepInputs(batch), combine=combine)
    predicted = {i: text for i, text in enumerate(texts) if len(text) > 1}
    distances, wrong = [_empty(len(text)) for text in texts], dict[int, int]()
    if predicted:
        engines = [side.engine for side in sides]
        for text in prefilled(engines, predicted, step, ComparedText, full_lanes=full_lanes):
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
    """Return host arrays for the results of a text before its first step."""
    numbers: list[Any] = [np.full(count, np.nan, np.float32) for _ in range(3)]
    return Divergences._make([*numbers, np.zeros(count, bool)])


def _program(sides: tuple[ComparedModel, ComparedModel], arguments: tuple[Any, ...]) -> CompiledStep:
    """Return the compiled comparison of these arguments."""
    leaves, tree = jax.tree.flatten(arguments)
    key = (sides[0].structure, sides[1].structure, tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
    steps = _PROGRAMS.setdefault(sides[0].engine, {})
    if key not in steps:
        programs = sides[0].engine.programs
        step, types = divergence_step(sides[0].structure, sides[1].structure), types_of(arguments)
        mesh = sides[0].engine.placement.mesh
        if mesh is not None:
            step = sharded(step, types, DIVERGENCE_CONTRACT, mesh)
        steps[key] = compile_step(step, types, DIVERGENCE_CONTRACT, passes=(DropDead(),), certify=programs.certify)
    return steps[key]
