"""The task of OpenAI Batch files: one response per request, in the same order."""

import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hybridlm.files.finished import FinishedTexts
from hybridlm.files.json_lines import MAX_WINDOW_BYTES
from hybridlm.files.parts import Origin, Parts
from hybridlm.grammars import compiler_version
from hybridlm.openai_batch.answers import Answer, answer_row, answers
from hybridlm.openai_batch.request import OpenAIRequest, read_request
from hybridlm.score_files.csv_rows import open_csv
from hybridlm.score_files.formats import check_output, ending_of
from hybridlm.score_files.jsonl import json_row
from hybridlm.score_files.lines import open_text_lines
from hybridlm.score_files.options import FileOptions
from hybridlm.score_files.rows import InputRow, Mark, RowFields, TextSource
from hybridlm.score_files.task import RowTask, Task, total
from hybridlm.text_model import TextModel

FORMAT = 2
"""Version of output rows; parts of another version are not continued."""
LINES_PER_LANE = 16
"""Lines of a part per lane: more lose more work in a kill, fewer leave lanes idle."""
MAX_FIRST_ERRORS = 3


@dataclass(frozen=True)
class BatchFileReport:
    """Result of `LM.batch_file`.

    Attributes:
        responses: answered lines.
        bad_lines: lines with an error instead.
        kept: finished by an interrupted run.
        prefix_tokens_saved: by shared prefixes of prompts, by earlier runs too.
    """

    responses: int
    bad_lines: int
    prompt_tokens: int
    completion_tokens: int
    kept: int = 0
    first_errors: tuple[str, ...] = ()
    prefix_tokens_saved: int = 0


def _columns(names: Sequence[str]) -> dict[str, bool]:
    """Return the CSV columns to read, True for JSON; raises ValueError."""
    columns = {"custom_id": False, "method": False, "url": False, "body": True}
    if faults := [name for name in columns if names.count(name) != 1]:
        raise ValueError(f"expected a column {faults[0]}, found {', '.join(names)}")
    return columns


def _row(number: int, value: dict[str, Any], size: int) -> InputRow:
    custom_id = value.get("custom_id")
    return InputRow(number, custom_id if isinstance(custom_id, str) else None, "body", value, size)


ID_NAME = "custom_id"


def open_batch(path: Path, fields: RowFields) -> TextSource:
    """Open a file of requests; a pipe is copied to a temporary file."""
    del fields
    if ending_of(path).startswith(".csv"):
        return open_csv(path, _columns, _row, ID_NAME)
    if stat.S_ISREG(path.stat().st_mode):
        return _open_lines(path)
    with path.open("rb") as pipe:
        copy = tempfile.NamedTemporaryFile(suffix=ending_of(path))  # noqa: SIM115  # closed by `close`
        shutil.copyfileobj(pipe, copy)
    copy.flush()
    return replace(_open_lines(Path(copy.name)), close=copy.close)


def _open_lines(path: Path) -> TextSource:
    source = open_text_lines(path, _line, ID_NAME)

    def rows(start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        return ((row, mark) for row, mark in source.rows(start) if row.item is not None or row.fault is not None)

    return replace(source, rows=rows)


def _line(number: int, line: bytes) -> InputRow:
    return json_row(_row, number, line) if line.strip() else InputRow(number, None, "", None, 0)


def check_batch_file(input: Path, output: Path, options: FileOptions) -> Path:
    """Check the files without opening a pipe; return the output's path."""
    path = check_output(input, output, options)
    if input.suffix.lower() in (".parquet", ".tsv", ".zst"):
        raise ValueError(f"{input}: expected lines of JSON (.jsonl, .jsonl.gz) or .csv, got {input.suffix}")
    if input.is_dir() or not input.exists():
        input.open("rb").close()  # raises OSError
    return path


@dataclass(frozen=True)
class BatchTask(Task):
    """Answers to OpenAI Batch requests, one per line, as `vllm run-batch` (docs/batch.md).

    Requests are for /v1/completions or /v1/chat/completions. An output line has id, custom_id,
    response (status_code, request_id, body) and error.
    """

    check: ClassVar[Any] = staticmethod(check_batch_file)

    def on(self, model: TextModel) -> RowTask:
        engine = model.engine
        origin = {**model.origin(), "prefix_cache": engine.options.texts()["prefix_cache"]}
        return batch_rows(model, origin, counts=model.counter(), window=LINES_PER_LANE * engine.lanes)


def batch_rows(model: TextModel, origin: Origin, **fields: Any) -> RowTask:
    # Raises ValueError for a model that does not generate, before files are opened.
    current, inputs = list[FinishedTexts](), model.inputs

    @contextmanager
    def part(finished: FinishedTexts) -> Iterator[None]:
        current[:] = [finished]
        model.engine.clear_prefix_cache()  # parts are independent
        yield

    def run(requests: Sequence[OpenAIRequest]) -> list[Answer]:
        (finished,) = current
        return answers(model, requests, finished)

    return RowTask(
        columns={"custom_id": "text", "response": "object", "error": "object"},
        read=lambda row: read_request(row.item, inputs),
        run=run,
        origin={**origin, "name": model.path.name, "llguidance": compiler_version()},
        window_bytes=MAX_WINDOW_BYTES,
        during=part,
        open=open_batch,
        output=answer_row,
        format=f"openai batch {FORMAT}",
        rows="lines",
        verb="answering",
        report=_report,
        **fields,
    )


def _report(output: Path, parts: Parts, earlier_rows: int) -> BatchFileReport:
    del output
    rows, read, errors, generated, saved = total(parts, "rows", "tokens", "errors", "generated", "saved")
    first = [part.error for part in parts.done if part.error is not None][:MAX_FIRST_ERRORS]
    return BatchFileReport(rows - errors, errors, read, generated, earlier_rows, tuple(first), saved)
