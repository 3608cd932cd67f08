"""Scoring of rows in one call; a row that cannot be scored gets an error instead."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybridlm.errors import NumericalError
from hybridlm.files.parts import Origin
from hybridlm.requests.probes import Probe
from hybridlm.requests.results import Score
from hybridlm.score_files.probed_rows import ProbedRows, captured_row
from hybridlm.score_files.rows import Columns, InputRow, OutputRow, RowFields
from hybridlm.scoring.distributions import NOTHING_ASKED, DistributionSettings, TextQuestion, about
from hybridlm.scoring.items import ScoredIds, own


class RowValues(NamedTuple):
    """Values of one row, in the place of scores.

    Attributes:
        fields: field -> value.
        tokens: number of tokens that they are of.
        wrong: index of the first token whose numbers are none; the fields have no meaning then.
    """

    fields: Mapping[str, Any]
    tokens: int
    wrong: int | None = None


@dataclass(frozen=True)
class ValueScorer:
    """Values of rows, in the place of scores.

    Attributes:
        columns: the fields of the output.
        encode: (text, token ids or object, name in messages) -> what is computed with; raises ValueError or TypeError.
        values: what was encoded of several rows -> the values of each, in order.
        request: fields of the input's objects, of which each is one request; None for texts and token ids.
    """

    columns: Columns
    encode: Callable[[Any, str], Any]
    values: Callable[[Sequence[Any]], Sequence[RowValues]]
    request: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Scorer:
    """A model as scoring files needs it.

    Attributes:
        encode: (text, token ids or object, name in messages) -> token ids that the model can score, for each
            completion; raises ValueError or TypeError.
        score: token ids -> scores, in order, a function of their order and content; takes `question=` if anything is
            asked about the distributions, and `probes=` with `probed`.
        origin: everything else that the scores depend on: the model and its settings.
        settings: what is asked about the distributions; its `token_ids` may be the name of a field of the rows.
        vocab_size: chosen ids are below it.
        saved: tokens so far that were not prefilled because texts begin alike.
        values: gives values instead of scores; None for scores.
        probed: what is read and changed inside the model; None for nothing.
    """

    encode: Callable[[Any, str], list[ScoredIds]]
    score: Callable[..., list[Score]]
    origin: Origin
    settings: DistributionSettings = NOTHING_ASKED
    vocab_size: int = 0
    saved: Callable[[], int] = lambda: 0
    values: ValueScorer | None = None
    probed: ProbedRows | None = None

    @property
    def fields(self) -> RowFields:
        """The fields or columns that rows have beside those of texts."""
        chosen = self.settings.token_ids if isinstance(self.settings.token_ids, str) else None
        return RowFields(chosen, None if self.probed is None else self.probed.field)

    @property
    def columns(self) -> Columns | None:
        """The fields of an output of values; None for one of scores."""
        if self.values is not None:
            return self.values.columns
        return None if self.probed is None else self.probed.columns

    def ask(self, row: InputRow, ids: Sequence[ScoredIds]) -> list[TextQuestion]:
        """Return what is asked about the texts of a row; raises TypeError or ValueError."""
        if not self.settings.given:
            return []
        own = self.fields.chosen
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
    if scorer.values is not None:
        return _value_rows(scorer.values, rows, names)
    encoded = [_encode(scorer, row, name) for row, name in zip(rows, names, strict=True)]
    good = [found for found in encoded if not isinstance(found, str)]
    texts = [one.token_ids for row in good for one in row.texts]
    given: dict[str, Any] = {}
    if scorer.settings.given:
        given["question"] = scorer.settings.together([one for row in good for one in row.asked])
    if scorer.probed is not None:
        given["probes"] = [one for row in good for one in row.probes]
    scores = iter(scorer.score(texts, **given))
    output = []
    for row, name, one_row in zip(rows, names, encoded, strict=True):
        if isinstance(one_row, str):
            output.append(OutputRow(row.id, None, one_row))
            continue
        found = [own(next(scores), one.prompt) for one in one_row.texts]
        wrong = next((one.first_nan for one in found if one.first_nan is not None), None)
        if wrong is not None:
            output.append(OutputRow(row.id, None, str(NumericalError(name or row.key, wrong))))
        elif scorer.columns is not None:
            output.append(captured_row(row.id, found[0]))
        else:
            output.append(OutputRow(row.id, found[0], None, tuple(found) if row.several else ()))
    return output


def _value_rows(scorer: ValueScorer, rows: Sequence[InputRow], names: Sequence[str | None]) -> list[OutputRow]:
    """Return the values or errors of rows, in order."""
    encoded = [_read(scorer.encode, row, name) for row, name in zip(rows, names, strict=True)]
    found = iter(scorer.values([one for one, fault in encoded if fault is None]))
    output: list[OutputRow] = []
    for row, name, (_, fault) in zip(rows, names, encoded, strict=True):
        if fault is not None:
            output.append(OutputRow(row.id, None, fault))
            continue
        one = next(found)
        if one.wrong is None:
            output.append(OutputRow(row.id, None, None, values=one.fields, tokens=one.tokens))
        else:
            output.append(OutputRow(row.id, None, str(NumericalError(name or row.key, one.wrong))))
    return output


class _EncodedRow(NamedTuple):
    """Texts of a row, one for each completion, and what is asked about each and read and changed in it, if anything."""

    texts: list[ScoredIds]
    asked: list[TextQuestion]
    probes: list[Probe | None]


def _encode(scorer: Scorer, row: InputRow, name: str | None) -> _EncodedRow | str:
    """Return the texts of a row, or its error."""

    def encoded(item: Any, key: str) -> _EncodedRow:
        ids = scorer.encode(item, key)
        probes = [] if scorer.probed is None else scorer.probed.probes(ids, row.interventions, key)
        return _EncodedRow(ids, scorer.ask(row, ids), probes)

    found, fault = _read(encoded, row, name)
    return found if fault is None else fault


def _read(encode: Callable[[Any, str], Any], row: InputRow, name: str | None) -> tuple[Any, str | None]:
    """Return what is made of a row, and the error if nothing can be made of it."""
    fault = row.fault
    if fault is None:
        try:
            return encode(row.item, row.key), None
        except (ValueError, TypeError) as error:
            fault = str(error)
    return None, fault if name is None else f"{name}: {fault}"
