"""Scoring rows of texts together: what can be scored is, and every other row has an error instead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridlm.errors import NumericalError
from hybridlm.requests.results import Score
from hybridlm.score_files.parts import Origin
from hybridlm.score_files.rows import InputRow, OutputRow


@dataclass(frozen=True)
class Scorer:
    """What scores texts.

    Attributes:
        encode: (text or token ids, what to call it) -> token ids that the model can score; raises ValueError or
            TypeError.
        score: scores of such token ids, in order; a function of their order and content.
        origin: what the scores depend on besides: the model and its settings.
    """

    encode: Callable[[Any, str], tuple[int, ...]]
    score: Callable[[Sequence[tuple[int, ...]]], list[Score]]
    origin: Origin


def score_rows(scorer: Scorer, rows: Sequence[InputRow], unit: str | None) -> list[OutputRow]:
    """Scores or errors of rows, in their order.

    Args:
        scorer: scores the texts, all of them in one call.
        rows: texts, unchecked.
        unit: what a row is called in front of its number in messages; None for messages without.
    """
    names = [None if unit is None else f"{unit} {row.number}" for row in rows]
    encoded = [_encode(scorer, row, name) for row, name in zip(rows, names, strict=True)]
    scores = iter(scorer.score([ids for ids in encoded if not isinstance(ids, str)]))
    output = []
    for row, name, ids in zip(rows, names, encoded, strict=True):
        score, error = (None, ids) if isinstance(ids, str) else (next(scores), None)
        if score is not None and score.first_nan is not None:
            score, error = None, str(NumericalError(name or row.key, score.first_nan))
        output.append(OutputRow(row.id, score, error))
    return output


def _encode(scorer: Scorer, row: InputRow, name: str | None) -> tuple[int, ...] | str:
    """The token ids of a row, or what is wrong with it."""
    fault = row.fault
    if fault is None:
        try:
            return scorer.encode(row.item, row.key)
        except (ValueError, TypeError) as error:
            fault = str(error)
    return fault if name is None else f"{name}: {fault}"
