"""Scoring of rows in one call; a row that cannot be scored gets an error instead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridlm.errors import NumericalError
from hybridlm.files.parts import Origin
from hybridlm.requests.results import Score
from hybridlm.score_files.rows import InputRow, OutputRow
from hybridlm.scoring.distributions import NOTHING_ASKED, DistributionSettings, TextQuestion, about
from hybridlm.scoring.items import ScoredIds, own
from hybridlm.scoring.pooling import Pooled


@dataclass(frozen=True)
class VectorScorer:
    """Vectors of texts, in the place of scores.

    Attributes:
        column: name of their field or column in the output.
        vectors: token ids -> their vectors, in order.
    """

    column: str
    vectors: Callable[[Sequence[tuple[int, ...]]], Pooled]


@dataclass(frozen=True)
class Scorer:
    """A model as scoring files needs it.

    Attributes:
        encode: (text, token ids or object, name in messages) -> token ids that the model can score, for each
            completion; raises ValueError or TypeError.
        score: token ids -> scores, in order, a function of their order and content; takes `question=` if anything is
            asked about the distributions.
        origin: everything else that the scores depend on: the model and its settings.
        settings: what is asked about the distributions; its `token_ids` may be the name of a field of the rows.
        vocab_size: chosen ids are below it.
        saved: tokens so far that were not prefilled because texts begin alike.
        vectors: gives vectors instead of scores; None for scores.
    """

    encode: Callable[[Any, str], list[ScoredIds]]
    score: Callable[..., list[Score]]
    origin: Origin
    settings: DistributionSettings = NOTHING_ASKED
    vocab_size: int = 0
    saved: Callable[[], int] = lambda: 0
    vectors: VectorScorer | None = None

    @property
    def chosen(self) -> str | None:
        """The field or column that holds the chosen ids of each row; None for none."""
        return self.settings.token_ids if isinstance(self.settings.token_ids, str) else None

    def ask(self, row: InputRow, ids: Sequence[ScoredIds]) -> list[TextQuestion]:
        """Return what is asked about the texts of a row; raises TypeError or ValueError."""
        if not self.settings.given:
            return []
        own = self.chosen
        given = (self.settings.token_ids if own is None else row.chosen) or ()
        return [about(one, self.settings.start, given, own or "token_ids", self.vocab_size) for one in ids]


def score_rows(scorer: Scorer, rows: Sequence[InputRow], unit: str | None) -> list[OutputRow]:
    """Return the scores or errors of rows, in order.

    Args:
        scorer: scores the texts, all of them in one call.
        rows: texts, unchecked.
        unit: the word before a row's number in messages; None for messages without numbers.
    """
    names = [None if unit is None else f"{unit} {row.number}" for row in rows]
    encoded = [_encode(scorer, row, name) for row, name in zip(rows, names, strict=True)]
    good = [found for found in encoded if not isinstance(found, str)]
    texts = [one.token_ids for ids, _ in good for one in ids]
    if scorer.vectors is not None:
        return _vector_rows(scorer.vectors, texts, list(zip(rows, names, encoded, strict=True)))
    asked = [one for _, about_row in good for one in about_row]
    given = {"question": scorer.settings.together(asked)} if scorer.settings.given else {}
    scores = iter(scorer.score(texts, **given))
    output = []
    for row, name, one_row in zip(rows, names, encoded, strict=True):
        if isinstance(one_row, str):
            output.append(OutputRow(row.id, None, one_row))
            continue
        found = [own(next(scores), one.prompt) for one in one_row[0]]
        wrong = next((one.first_nan for one in found if one.first_nan is not None), None)
        if wrong is not None:
            output.append(OutputRow(row.id, None, str(NumericalError(name or row.key, wrong))))
        else:
            output.append(OutputRow(row.id, found[0], None, tuple(found) if row.several else ()))
    return output


def _vector_rows(
    scorer: VectorScorer,
    texts: Sequence[tuple[int, ...]],
    encoded: Sequence[tuple[InputRow, str | None, tuple[list[ScoredIds], list[TextQuestion]] | str]],
) -> list[OutputRow]:
    """Return the vectors or errors of rows, in order; every row that has a text has one."""
    found, places, output = scorer.vectors(texts), iter(range(len(texts))), list[OutputRow]()
    for row, name, ids in encoded:
        place = -1 if isinstance(ids, str) else next(places)
        if isinstance(ids, str):
            output.append(OutputRow(row.id, None, ids))
        elif place in found.wrong:
            output.append(OutputRow(row.id, None, str(NumericalError(name or row.key, found.wrong[place]))))
        else:
            vector = scorer.column, found.vectors[place]
            output.append(OutputRow(row.id, None, None, vector=vector, tokens=len(texts[place])))
    return output


def _encode(scorer: Scorer, row: InputRow, name: str | None) -> tuple[list[ScoredIds], list[TextQuestion]] | str:
    """Return the token ids of a row with what is asked about them, or its error."""
    fault = row.fault
    if fault is None:
        try:
            ids = scorer.encode(row.item, row.key)
            return ids, scorer.ask(row, ids)
        except (ValueError, TypeError) as error:
            fault = str(error)
    return fault if name is None else f"{name}: {fault}"
