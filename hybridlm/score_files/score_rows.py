"""Scoring of rows in one call; a row that cannot be scored gets an error instead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridlm.errors import NumericalError
from hybridlm.files.parts import Origin
from hybridlm.requests.results import Score
from hybridlm.score_files.rows import InputRow, OutputRow
from hybridlm.scoring.items import ScoredIds, own


@dataclass(frozen=True)
class Scorer:
    """A model as scoring files needs it.

    Attributes:
        encode: (text, token ids or object, name in messages) -> token ids that the model can score, for each
            completion; raises ValueError or TypeError.
        score: token ids -> scores, in order; a function of their order and content.
        origin: everything else that the scores depend on: the model and its settings.
    """

    encode: Callable[[Any, str], list[ScoredIds]]
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
    scores = iter(scorer.score([one.token_ids for ids in encoded if not isinstance(ids, str) for one in ids]))
    output = []
    for row, name, ids in zip(rows, names, encoded, strict=True):
        if isinstance(ids, str):
            output.append(OutputRow(row.id, None, ids))
            continue
        found = [own(next(scores), one.prompt) for one in ids]
        wrong = next((one.first_nan for one in found if one.first_nan is not None), None)
        if wrong is not None:
            output.append(OutputRow(row.id, None, str(NumericalError(name or row.key, wrong))))
        else:
            output.append(OutputRow(row.id, found[0], None, tuple(found) if row.several else ()))
    return output


def _encode(scorer: Scorer, row: InputRow, name: str | None) -> list[ScoredIds] | str:
    """Return the token ids of a row, or its error."""
    fault = row.fault
    if fault is None:
        try:
            return scorer.encode(row.item, row.key)
        except (ValueError, TypeError) as error:
            fault = str(error)
    return fault if name is None else f"{name}: {fault}"
