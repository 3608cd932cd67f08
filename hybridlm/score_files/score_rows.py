"""Scoring of rows in one call; a row that cannot be scored gets an error instead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridlm.errors import NumericalError
from hybridlm.files.parts import Origin
from hybridlm.requests.results import Score
from hybridlm.score_files.rows import InputRow, OutputRow


@dataclass(frozen=True)
class Scorer:
    """A model as scoring files needs it.

    Attributes:
        encode: (text or token ids, name in messages) -> token ids that the model can score; raises ValueError or
            TypeError.
        score: token ids -> scores, in order; a function of their order and content.
        origin: everything else that the scores depend on: the model and its settings.
    """

    encode: Callable[[Any, str], tuple[int, ...]]
    score: Callable[[Sequence[tuple[int, ...]]], list[Score]]
    origin: Origin


def score_rows(scorer: Scorer, rows: Sequence[InputRow], unit: str | None) -> list[OutputRow]:
    """Return the scores or errors of rows, in order.

    Args:
        scorer: scores the texts, all of them in one call.
        rows: texts, unchecked.
        unit: the word before a row's number in messages; None for messages without numbers.
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
    """Return the token ids of a row, or its error."""
    fault = row.fault
    if fault is None:
        try:
            return scorer.encode(row.item, row.key)
        except (ValueError, TypeError) as error:
            fault = str(error)
    return fault if name is None else f"{name}: {fault}"
