"""Scoring of rows in one call; a row that cannot be scored gets an error instead."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hybridlm.errors import NumericalError
from hybridlm.files.finished import FinishedTexts
from hybridlm.files.parts import Origin
from hybridlm.requests.probes import Probe
from hybridlm.requests.results import Score
from hybridlm.score_files.probed_rows import ProbedRows
from hybridlm.score_files.rows import NO_FIELDS, Columns, InputRow, OutputRow, RowFields
from hybridlm.score_files.score_columns import PROMPTS, score_columns, score_fields
from hybridlm.scoring.distributions import NOTHING_ASKED, DistributionSettings, TextQuestion, about
from hybridlm.scoring.items import ScoredIds, own

Keeping = Callable[[FinishedTexts], AbstractContextManager[Any]]
"""Takes the kept results of a part, for the time that it is computed."""


@dataclass(frozen=True)
class StepPlaces:
    """Tokens and places of steps.

    Attributes:
        step_tokens: tokens that the steps consumed.
        step_places: places for tokens in these steps, lanes x chunk each.
    """

    step_tokens: int = 0
    step_places: int = 0

    def __sub__(self, other: "StepPlaces") -> "StepPlaces":
        """Return the counts since an earlier moment."""
        return StepPlaces(self.step_tokens - other.step_tokens, self.step_places - other.step_places)


class RowValues(NamedTuple):
    """Values of one row.

    Attributes:
        fields: field -> value.
        tokens: number of tokens that they are of.
        wrong: index of the first token whose numbers are not finite; the fields have no meaning then.
        shifted: number of completions that are scored from within the prompt.
    """

    fields: Mapping[str, Any]
    tokens: int
    wrong: int | None = None
    shifted: int = 0


@dataclass(frozen=True)
class ValueScorer:
    """Other values of rows than scores.

    Attributes:
        columns: the fields of the output.
        prompt_columns: further fields, for an input with prompts or messages.
        encode: (text, token ids or object, name in messages) -> what is computed with; raises ValueError or TypeError.
        of_rows: what was encoded of several rows -> the values of each, a function of their order and content.
        depends_on: everything that the output depends on beside the input: the model and all settings.
        saved: tokens so far that were not prefilled because texts begin alike.
        request: fields of the input's objects, of which each is one request; None for texts and token ids.
        row_fields: the fields or columns that rows have beside those of texts.
        ids: number of ids that are reported about a position, at least 1: they are held until they are written.
        most_rows: maximum number of rows of a window; None for any.
        computed: tokens so far that were prefilled.
        step_places: tokens and places of the steps so far.
        keeping: while a part is computed, keeps the results of single texts, and restores those of an earlier run.
    """

    columns: Columns
    encode: Callable[[Any, str], Any]
    of_rows: Callable[[Sequence[Any]], Sequence[RowValues]]
    depends_on: Origin
    saved: Callable[[], int] = lambda: 0
    request: tuple[str, ...] | None = None
    row_fields: RowFields = NO_FIELDS
    ids: int = 1
    most_rows: int | None = None
    computed: Callable[[], int] = lambda: 0
    step_places: Callable[[], StepPlaces] = StepPlaces
    prompt_columns: Columns = field(default_factory=dict)
    keeping: Keeping = nullcontext

    def read(self, row: InputRow) -> Any:
        """Return what is computed with; raises ValueError or TypeError."""
        return self.encode(row.item, row.key)


@dataclass(frozen=True)
class Scorer:
    """Log-probabilities of rows; properties as the fields of `ValueScorer`.

    Attributes:
        encode: (text, token ids or object, name in messages) -> token ids that the model can score, for each
            completion; raises ValueError or TypeError.
        score: token ids -> scores, in order, a function of their order and content; takes `question=` if anything is
            asked about the distributions, and `probes=` with `probed`.
        origin: everything else that the scores depend on but the settings.
        settings: what is asked about the distributions; its `token_ids` may be the name of a field of the rows.
        vocab_size: chosen ids are below it.
        saved, computed, step_places, request, keeping: as for `ValueScorer`.
        probed: what is read and changed inside the model; None for nothing.
    """

    encode: Callable[[Any, str], list[ScoredIds]]
    score: Callable[..., list[Score]]
    origin: Origin
    settings: DistributionSettings = NOTHING_ASKED
    vocab_size: int = 0
    saved: Callable[[], int] = lambda: 0
    probed: ProbedRows | None = None
    request: tuple[str, ...] | None = None
    computed: Callable[[], int] = lambda: 0
    step_places: Callable[[], StepPlaces] = StepPlaces
    keeping: Keeping = nullcontext

    @property
    def depends_on(self) -> Origin:
        """Everything that the output depends on beside the input: the model and all settings."""
        asked = {"distributions": repr(self.settings)} if self.settings.given else {}
        return {**self.origin, **asked, **({} if self.probed is None else self.probed.origin)}

    @property
    def columns(self) -> Columns:
        """Columns of the output, by name."""
        return {**score_columns(self.settings), **({} if self.probed is None else self.probed.columns)}

    @property
    def prompt_columns(self) -> Columns:
        """Further columns of the output, for an input with prompts or messages."""
        return PROMPTS

    @property
    def row_fields(self) -> RowFields:
        """Fields of an input row that name its token ids and what is read inside the model."""
        chosen = self.settings.token_ids if isinstance(self.settings.token_ids, str) else None
        return RowFields(chosen, None if self.probed is None else self.probed.field)

    @property
    def most_rows(self) -> int | None:
        """Maximum number of rows of a window; None for no limit."""
        return None if self.probed is None else self.probed.most_rows

    @property
    def ids(self) -> int:
        """Number of token ids that are kept for each position, at least 1."""
        given = self.settings.token_ids
        return max(self.settings.top + (0 if given is None or isinstance(given, str) else len(given)), 1)

    def read(self, row: InputRow) -> "_EncodedRow":
        """Return an input row's texts as token ids, with what is asked of each; raises ValueError if a row is wrong."""
        ids, asked, probes = self.encode(row.item, row.key), list[TextQuestion](), list[Probe | None]()
        if self.settings.given:
            name = self.row_fields.chosen
            given = (self.settings.token_ids if name is None else row.chosen) or ()
            asked = [about(one, self.settings.start, given, name or "token_ids", self.vocab_size) for one in ids]
        if self.probed is not None:
            probes = self.probed.probes(ids, row.interventions, row.key)
        return _EncodedRow(ids, asked, probes, row.several)

    def of_rows(self, rows: Sequence["_EncodedRow"]) -> list[RowValues]:
        """Score the texts of some rows together and return the values of each row's columns."""
        given: dict[str, Any] = {}
        if self.settings.given:
            given["question"] = self.settings.together([one for row in rows for one in row.asked])
        if self.probed is not None:
            given["probes"] = [one for row in rows for one in row.probes]
        scores = iter(self.score([one.token_ids for row in rows for one in row.texts], **given))
        return [_of_row([own(next(scores), ids) for ids in row.texts], row.several) for row in rows]


RowScorer = ValueScorer | Scorer
"""A model as files of scores need it."""


class _EncodedRow(NamedTuple):
    """Texts of a row, one for each completion, and what is asked about each and read and changed in it, if anything."""

    texts: list[ScoredIds]
    asked: list[TextQuestion]
    probes: list[Probe | None]
    several: bool


def _of_row(scores: list[Score], several: bool) -> RowValues:
    wrong = next((one.first_wrong for one in scores if one.first_wrong is not None), None)
    fields = score_fields(scores[0])
    if several:
        # A completion with a token that spans the boundary has fewer tokens of the prompt before it.
        prompt = max(score.prefix_tokens for score in scores)
        fields = {"prompt_tokens": prompt, "completions": list(map(score_fields, scores))}
    return RowValues(fields, len(scores[0].token_ids), wrong, sum(score.boundary_shift > 0 for score in scores))


def score_rows(scorer: RowScorer, rows: Sequence[InputRow], unit: str | None) -> list[OutputRow]:
    """Return the scores or errors of rows, in order.

    Args:
        scorer: scores the texts, all of them in one call.
        rows: texts, unchecked.
        unit: the word before a row's number in messages; None for messages without numbers.
    """
    names = [None if unit is None else f"{unit} {row.number}" for row in rows]
    given = [_read(scorer, row, name) for row, name in zip(rows, names, strict=True)]
    found = iter(scorer.of_rows([one for one, fault in given if fault is None]))
    output: list[OutputRow] = []
    for row, name, (_, fault) in zip(rows, names, given, strict=True):
        if fault is None:
            fields, tokens, wrong, shifted = next(found)
            if wrong is None:
                output.append(OutputRow(row.id, fields, None, tokens, shifted))
                continue
            fault = str(NumericalError(name or row.key, wrong))
        output.append(OutputRow(row.id, None, fault))
    return output


def _read(scorer: RowScorer, row: InputRow, name: str | None) -> tuple[Any, str | None]:
    """Return what is made of a row, and the error if nothing can be made of it."""
    fault = row.fault
    if fault is None:
        try:
            return scorer.read(row), None
        except (ValueError, TypeError) as error:
            fault = str(error)
    return None, fault if name is None else f"{name}: {fault}"
