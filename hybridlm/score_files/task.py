"""Tasks on rows: work, one call for a part, and the report."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hybridlm.errors import NumericalError
from hybridlm.files.finished import FinishedTexts
from hybridlm.files.parts import Origin, Parts
from hybridlm.score_files.formats import check_file, open_source
from hybridlm.score_files.options import DEFAULT_WINDOW, FileOptions
from hybridlm.score_files.rows import NO_FIELDS, Columns, InputRow, OutputRow, RowFields, TextSource
from hybridlm.text_model import TextModel, TokenCounts


@dataclass(frozen=True)
class ScoreFileReport:
    """Result of a run over the rows of a file, as of `LM.score_file`.

    Attributes:
        output: the file that was written; the name includes the shard.
        texts: rows that were computed.
        errors: rows that have an error instead.
        tokens: tokens of the texts.
        kept: number of these rows that an earlier, interrupted run had finished.
        prefix_tokens_saved: tokens that were not computed again because rows begin alike, by earlier runs too.
        shifted: completions that are scored from within the prompt, because a token spans both.
        step_tokens: tokens that the steps consumed, by earlier runs too; not compared.
        step_places: places for tokens in these steps, lanes x chunk each; not compared.
    """

    output: Path
    texts: int
    errors: int
    tokens: int
    kept: int
    prefix_tokens_saved: int = 0
    shifted: int = 0
    step_tokens: int = field(default=0, compare=False)
    step_places: int = field(default=0, compare=False)

    @property
    def token_share(self) -> float | None:
        """Share of tokens among the computed places, the rest is padding; None without a step."""
        return self.step_tokens / self.step_places if self.step_places else None


def total(parts: Parts, *names: str) -> list[int]:
    """Return sums over all parts of fields of their records."""
    return [sum(getattr(part, name) for part in parts.done) for name in names]


def file_report(output: Path, parts: Parts, earlier_rows: int) -> ScoreFileReport:
    """Return the report of a run.

    Args:
        output: the written file.
        parts: all parts of the output.
        earlier_rows: rows that an earlier run had finished.
    """
    rows, tokens, errors, *counts = total(
        parts, "rows", "tokens", "errors", "saved", "shifted", "step_tokens", "step_places"
    )
    return ScoreFileReport(output, rows - errors, errors, tokens, earlier_rows, *counts)


class RowValues(NamedTuple):
    """Values of one row.

    Attributes:
        fields: field -> value.
        tokens: number of tokens of the text.
        wrong: index of the first token with NaN or infinity; such fields have no meaning.
        shifted: number of completions scored from within the prompt.
    """

    fields: Mapping[str, Any]
    tokens: int
    wrong: int | None = None
    shifted: int = 0


def output_row(row: InputRow, name: str | None, result: RowValues | str) -> OutputRow:
    """Return a row of the output.

    Args:
        row: row of the input.
        name: name of the row in messages; None for messages without names.
        result: values of the row, or its fault.
    """
    if isinstance(result, RowValues):
        if result.wrong is None:
            return OutputRow(row.id, result.fields, None, result.tokens, result.shifted)
        result = str(NumericalError(name or row.key, result.wrong))
    return OutputRow(row.id, None, result)


@dataclass(frozen=True, kw_only=True)
class RowTask:
    """A task with its model, for a run over rows.

    Attributes:
        columns: fields of the output.
        read: row of the input -> work; raises ValueError or TypeError for a wrong row.
        run: works of several rows -> results of each, a function of their order and content.
        origin: everything that determines the output, except the input and the options of the run.
        prompt_columns: further fields, for an input with prompts or messages.
        request: fields of the input's objects if each is one request; None for texts and token ids.
        row_fields: further fields or columns of the rows.
        ids: number of reported ids for each position, at least 1; they are in memory until the part is written.
        most_rows: maximum number of rows of a window; None for no limit.
        window: default of the option.
        window_bytes: size at which a window ends; None for 1 MiB.
        counts: returns the tokens and places so far.
        during: context of the computation of a part.
        check: (input, output, options) -> path of the output; checks that need no model.
        open: (input, names of fields, fields of requests) -> rows of the input.
        output: (row, its name, result or fault) -> row of the output.
        format: version of the output's rows; None for rows of scores.
        rows: plural word for rows in messages.
        verb: word for progress.
        report: (output, parts, rows of an earlier run) -> result of the run.
    """

    columns: Columns
    read: Callable[[InputRow], Any]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    origin: Origin
    prompt_columns: Columns = field(default_factory=dict)
    request: tuple[str, ...] | None = None
    row_fields: RowFields = NO_FIELDS
    ids: int = 1
    most_rows: int | None = None
    window: int = DEFAULT_WINDOW
    window_bytes: int | None = None
    counts: Callable[[], TokenCounts] = TokenCounts
    during: Callable[[FinishedTexts], AbstractContextManager[Any]] = nullcontext
    check: Callable[[Path, Path, FileOptions], Path] = check_file
    open: Callable[[Path, RowFields, tuple[str, ...] | None], TextSource] = open_source
    output: Callable[[InputRow, str | None, Any], OutputRow] = output_row
    format: str | None = None
    rows: str = "rows"
    verb: str = "scoring"
    report: Callable[[Path, Parts, int], Any] = file_report


class Task(ABC):
    """Settings of a task, for any model: `LM.run_file` and `hybridlm.ray.score_dataset` take one."""

    check: ClassVar[Any] = staticmethod(check_file)

    @abstractmethod
    def on(self, model: TextModel) -> RowTask:
        """Return the task with a model.

        Raises:
            TypeError, ValueError: a setting is wrong, or the model cannot do the task.
        """


def text_task(
    model: TextModel,
    columns: Columns,
    encode: Callable[[Any, str], Any],
    run: Callable[[Sequence[Any]], Sequence[RowValues]],
    origin: Origin,
    **fields: Any,
) -> RowTask:
    """Return a task on texts and token ids.

    Args:
        model: computes the values.
        columns, run: as for `RowTask`.
        encode: (text, token ids or object, name in messages) -> work.
        origin: settings that determine the output, without the model.
        **fields: other fields of `RowTask`.
    """
    return RowTask(
        columns=columns,
        read=lambda row: encode(row.item, row.key),
        run=run,
        origin={**model.origin(), **origin},
        counts=model.counts,
        during=model.keeping,
        **fields,
    )


def run_rows(task: RowTask, rows: Sequence[InputRow], unit: str | None) -> list[OutputRow]:
    """Return the rows of the output, in order, with the error of each wrong row.

    Args:
        task: computes all rows in one call.
        rows: rows of the input, unchecked.
        unit: the word before a row's number in messages; None for messages without numbers.
    """
    names = [None if unit is None else f"{unit} {row.number}" for row in rows]
    works = [_read(task, row, name) for row, name in zip(rows, names, strict=True)]
    results = iter(task.run([work for work, fault in works if fault is None]))
    return [
        task.output(row, name, next(results) if fault is None else fault)
        for row, name, (_, fault) in zip(rows, names, works, strict=True)
    ]


def _read(task: RowTask, row: InputRow, name: str | None) -> tuple[Any, str | None]:
    """Return the work of a row, and the fault of a wrong row."""
    fault = row.fault
    if fault is None:
        try:
            return task.read(row), None
        except (ValueError, TypeError) as error:
            fault = str(error)
    return None, fault if name is None else f"{name}: {fault}"
