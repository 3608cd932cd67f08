"""Tasks on rows: work, one call for a part, and the report."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hybridlm.errors import NumericalError
from hybridlm.files.finished import FinishedTexts
from hybridlm.files.parts import Origin, Parts
from hybridlm.score_files.formats import check_file, open_source
from hybridlm.score_files.options import DEFAULT_WINDOW
from hybridlm.score_files.rows import NO_FIELDS, Columns, InputRow, OutputRow, RowFields, TextSource
from hybridlm.text_model import TextModel, TokenCounts


@dataclass(frozen=True)
class ScoreFileReport:
    """Result of a run over the rows of a file, as of `LM.score_file`.

    Attributes:
        output: written file, with the shard in its name.
        texts, errors: computed and wrong rows.
        kept: rows that an interrupted run had finished.
        prefix_tokens_saved: tokens that common prefixes saved, by earlier runs too.
        shifted: completions scored from within the prompt: a token spans both.
        step_tokens, step_places: tokens and token places (lanes x chunk) of steps.
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
        """Share of tokens among computed places; None without a step."""
        return self.step_tokens / self.step_places if self.step_places else None


def total(parts: Parts, *names: str) -> list[int]:
    return [sum(getattr(part, name) for part in parts.done) for name in names]


def file_report(output: Path, parts: Parts, earlier_rows: int) -> ScoreFileReport:
    rows, tokens, errors, *counts = total(
        parts, "rows", "tokens", "errors", "saved", "shifted", "step_tokens", "step_places"
    )
    return ScoreFileReport(output, rows - errors, errors, tokens, earlier_rows, *counts)


RowResult = OutputRow | NumericalError
"""A row without its id, or the error of a token with NaN or infinity."""


def row_result(fields: Mapping[str, Any], tokens: int, wrong: int | None, shifted: int = 0) -> RowResult:
    """Return a row's result; an error for a first token with NaN or infinity (`wrong`)."""
    return OutputRow(None, fields, None, tokens, shifted) if wrong is None else NumericalError("", wrong)


def output_row(row: InputRow, name: str | None, result: RowResult | str) -> OutputRow:
    if isinstance(result, OutputRow):
        return result._replace(id=row.id)
    return OutputRow(row.id, None, str(result if isinstance(result, str) else result.of(name or row.key)))


@dataclass(frozen=True, kw_only=True)
class RowTask:
    """A task with its model.

    Attributes:
        read: input row -> work; raises ValueError or TypeError.
        run: works -> results, a function of order and content.
        origin: everything else that determines the output.
        prompt_columns: further fields with prompts or messages.
        ids: reported ids per position, at least 1; in memory until the part is written.
        window_bytes: None for 1 MiB.
        during: context around a part.
        open: (input, field names) -> input rows.
        output: (row, name, result or fault) -> output row.
        format: version of output rows; None for scores.
        report: (output, parts, earlier rows) -> result.
    """

    columns: Columns
    read: Callable[[InputRow], Any]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    origin: Origin
    prompt_columns: Columns = field(default_factory=dict)
    row_fields: RowFields = NO_FIELDS
    ids: int = 1
    most_rows: int | None = None
    window: int = DEFAULT_WINDOW
    window_bytes: int | None = None
    counts: Callable[[], TokenCounts] = TokenCounts
    during: Callable[[FinishedTexts], AbstractContextManager[Any]] = nullcontext
    open: Callable[[Path, RowFields], TextSource] = open_source
    output: Callable[[InputRow, str | None, Any], OutputRow] = output_row
    format: str | None = None
    rows: str = "rows"
    verb: str = "scoring"
    report: Callable[[Path, Parts, int], Any] = file_report


class Task(ABC):
    """Settings of a task, for any model; `LM.run_file` and `hybridlm.ray.score_dataset` take one.

    Attributes:
        check: (input, output, `FileOptions`) -> output path, without a model.
    """

    check: ClassVar[Any] = staticmethod(check_file)

    @abstractmethod
    def on(self, model: TextModel) -> RowTask:
        """Return the task with a model; raises TypeError or ValueError if they do not fit."""


def text_task(
    model: TextModel,
    columns: Columns,
    encode: Callable[[Any, str], Any],
    run: Callable[[Sequence[Any]], Sequence[RowResult]],
    origin: Origin,
    **fields: Any,
) -> RowTask:
    """Return a task on texts; `origin` are the settings that determine the output."""
    return RowTask(
        columns=columns,
        read=lambda row: encode(row.item, row.key),
        run=run,
        origin={**model.origin(), **origin},
        counts=model.counter(),
        during=model.keeping,
        **fields,
    )


def run_rows(task: RowTask, rows: Sequence[InputRow], unit: str | None) -> list[OutputRow]:
    """Return the output rows, with each wrong row's error."""
    names = [None if unit is None else f"{unit} {row.number}" for row in rows]
    works = [_read(task, row, name) for row, name in zip(rows, names, strict=True)]
    results = iter(task.run([work for work, fault in works if fault is None]))
    return [
        task.output(row, name, next(results) if fault is None else fault)
        for row, name, (_, fault) in zip(rows, names, works, strict=True)
    ]


def _read(task: RowTask, row: InputRow, name: str | None) -> tuple[Any, str | None]:
    fault = row.fault
    if fault is None:
        try:
            return task.read(row), None
        except (ValueError, TypeError) as error:
            fault = str(error)
    return None, fault if name is None else f"{name}: {fault}"
