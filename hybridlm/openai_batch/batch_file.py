"""Answers to an OpenAI Batch file: one response per request, as JSON lines in the same order.

The answers of a window of lines are a part of the output (`files/parts`): a run that was killed continues behind the
last part, and its output has the bytes of an undisturbed one.
"""

import hashlib
import itertools
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hybridlm.engine.inputs import Inputs
from hybridlm.files.atomic import replaceable
from hybridlm.files.json_lines import MAX_WINDOW_BYTES, dump, numbered_lines, parse_object, windows
from hybridlm.files.parts import Origin, Parts, parts_of
from hybridlm.grammars import compiler_version
from hybridlm.openai_batch.answers import BatchLine, BatchModel, answer_row, answers
from hybridlm.openai_batch.request import read_request
from hybridlm.progress import FileProgress, file_progress
from hybridlm.requests.validation import check_count
from hybridlm.score_files.jsonl import JsonScores
from hybridlm.score_files.order import (
    DEFAULT_SORT_WINDOW,
    MIN_SAVED,
    Limits,
    SortWindow,
    check_sort_window,
    common_share,
    grouped,
    in_windows,
    sorted_parts,
)
from hybridlm.score_files.rows import InputRow

Numbered = tuple[int, bytes]
"""A line with its number."""
FORMAT = 2
"""Version of the output's rows: parts of another version are not continued."""
PROMPT_FIELDS = ("tools", "chat_template_kwargs", "messages", "prompt")
"""Fields of a body that decide what its prompts begin with."""
MAX_FIRST_ERRORS = 3
"""Errors that a report repeats."""


@dataclass(frozen=True)
class BatchFileReport:
    """Result of `LM.batch_file`.

    Attributes:
        responses: lines that were answered.
        bad_lines: lines that have an error instead.
        prompt_tokens, completion_tokens: of the responses.
        kept: how many of these lines an earlier, interrupted run had done.
        prefix_tokens_saved: tokens of prompts that were not read again because prompts begin alike, by earlier runs
            too; with a prefix cache, and of prompts whose log-probabilities are asked for.
        first_errors: some of the errors, the first ones of their parts.
    """

    responses: int
    bad_lines: int
    prompt_tokens: int
    completion_tokens: int
    kept: int = 0
    first_errors: tuple[str, ...] = ()
    prefix_tokens_saved: int = 0


def batch_file(
    model: BatchModel,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    window: int,
    restart: bool = False,
    progress: FileProgress = None,
    sort_window: int = DEFAULT_SORT_WINDOW,
) -> BatchFileReport:
    """Answer every line of a file; see `LM.batch_file`.

    Args:
        model: answers the requests.
        input, output: the files.
        window: lines that share one queue over the lanes and are kept as a part; fewer if they are long.
        restart: delete the parts of an earlier run and begin again.
        progress: None shows a bar where standard error is a terminal; "lines" prints a line now and then elsewhere.
        sort_window: bytes of consecutive lines that are sorted by their prompts, at least a window; 0 sorts nothing.
    """
    check_count(window, "window")
    path = check_batch_file(Path(input), Path(output), sort_window)
    with (
        _rereadable(Path(input)) as (source, sha256),
        parts_of(path) as parts,
        file_progress(progress, "answering", model.computed, os.fstat(source.fileno()).st_size) as bar,
        _custom_ids() as first_use,
    ):
        _require_lines(source, input)
        parts.resume(_origin(model, sha256, window, sort_window), restart)
        kept = sum(part.rows for part in parts.done)
        done, kept_bytes, total = 0, 0, os.fstat(source.fileno()).st_size
        try:
            # As in vLLM, blank lines are skipped.
            lines = ((number, line) for number, line in numbered_lines(source) if line.strip())
            before, number, sorted_windows = len(parts.done), 0, list[SortWindow]()
            for group in grouped(windows(lines, window), _bytes, sort_window):
                numbered = list(itertools.chain.from_iterable(group))
                # All custom_ids of the group first: a line may be answered before an earlier one with the same.
                rows = [_row(at, line, first_use) for at, line in numbered]
                cut = _parts_of(rows, [len(one) for one in group], Limits(window, MAX_WINDOW_BYTES, sort_window))
                order = None if _in_order(cut) else np.concatenate(cut)
                sorted_windows.append(SortWindow(len(cut), order))
                for places in cut:
                    part = [numbered[place] for place in places.tolist()]
                    if number >= before:
                        _add(parts, model, [_read(at, line, model.inputs, first_use) for at, line in part])
                    done += sum(len(line) + 1 for _, line in part)
                    kept_bytes = done if number < before else kept_bytes
                    number += 1
                    bar(done, total, kept_bytes)
            if not parts.joined:
                target = JsonScores({}, {})
                parts.join(lambda contents, file: target.join(in_windows(contents, sorted_windows), file))
        except BaseException as error:
            parts.note(error, "lines")
            raise
        return _report(parts, kept)


def check_batch_file(input: Path, output: Path, sort_window: int) -> Path:
    """Return the path of the output; check what needs no model, so that none is loaded for a wrong name.

    Raises:
        ValueError, OSError: as `LM.batch_file`, of the places of the files and the size of a sort window.
    """
    check_sort_window(sort_window)
    path = replaceable(output, input)
    if input.is_dir() or not input.exists():
        with input.open("rb"):  # raises; a pipe is not opened here, it would lose what is in it
            pass
    return path


@contextmanager
def _rereadable(input: Path) -> Iterator[tuple[BinaryIO, str]]:
    """Open the input, or a temporary copy of what is no regular file (a pipe), with the SHA-256 of its content."""
    with input.open("rb") as given, tempfile.TemporaryFile() as copy:
        source: Any = given
        if not stat.S_ISREG(os.fstat(given.fileno()).st_mode):
            shutil.copyfileobj(given, copy)
            copy.flush()
            source = copy
        source.seek(0)
        sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        source.seek(0)
        yield source, sha256


def _require_lines(source: BinaryIO, input: str | os.PathLike[str]) -> None:
    found = any(line.strip() for _, line in numbered_lines(source))
    source.seek(0)
    if not found:
        raise ValueError(f"{os.fspath(input)}: holds no requests; expected at least one line that is not blank")


def _origin(model: BatchModel, sha256: str, window: int, sort_window: int) -> Origin:
    """Return everything that the bytes of the output depend on."""
    return {
        "input": f"sha256 {sha256}",
        **model.origin,
        "name": model.name,
        "llguidance": compiler_version(),
        "window": f"{window} lines, {MAX_WINDOW_BYTES} bytes",
        "sort window": f"{sort_window} bytes",
        "output": f"openai batch {FORMAT}",
    }


def _add(parts: Parts, model: BatchModel, lines: list[BatchLine]) -> None:
    """Answer a window of lines, and keep the answers as a part."""
    model.begin()
    rows: list[str] = []
    read, generated, saved = 0, 0, model.saved()
    errors: list[str] = []
    for line, answer in answers(model, lines, parts.begun):
        row = answer_row(line, answer)
        rows.append(dump(row) + "\n")
        if isinstance(answer, dict):
            read += answer["usage"]["prompt_tokens"]
            generated += answer["usage"]["completion_tokens"]
        else:
            errors.append(row["error"]["message"])
    part, saved = "".join(rows).encode("ascii"), model.saved() - saved
    parts.add(part, len(rows), read, len(errors), errors[0] if errors else None, generated=generated, saved=saved)


def _report(parts: Parts, kept: int) -> BatchFileReport:
    rows, read, errors, generated, saved = (
        sum(getattr(part, name) for part in parts.done) for name in ("rows", "tokens", "errors", "generated", "saved")
    )
    first = [part.error for part in parts.done if part.error is not None][:MAX_FIRST_ERRORS]
    return BatchFileReport(rows - errors, errors, read, generated, kept, tuple(first), saved)


def _bytes(window: list[Numbered]) -> int:
    return sum(len(line) for _, line in window)


def _row(number: int, line: bytes, first_use: Callable[[str, int], int]) -> InputRow:
    """Return the prompt of a line, to sort the lines by, and record its custom_id."""
    try:
        value = parse_object(line)
    except ValueError as error:
        return InputRow(number, None, "", None, len(line), str(error))
    if isinstance(found := value.get("custom_id"), str):
        first_use(found, number)
    body = value.get("body")
    prompt = {name: body[name] for name in PROMPT_FIELDS if name in body} if isinstance(body, dict) else {}
    return InputRow(number, None, "body", prompt, len(line))


def _parts_of(rows: Sequence[InputRow], windows: Sequence[int], limits: Limits) -> list[np.ndarray]:
    """Return the places of the lines of each part: sorted by their prompts, if these have much in common.

    Args:
        rows: the lines.
        windows: lines of each window; the parts of lines that stay in their order.
        limits: of parts of sorted lines.
    """
    if limits.sorted and common_share(rows) >= MIN_SAVED:
        return sorted_parts(rows, limits)
    ends = list(itertools.accumulate(windows))
    return [np.arange(end - count, end) for end, count in zip(ends, windows, strict=True)]


def _in_order(parts: Sequence[np.ndarray]) -> bool:
    return all(bool((np.diff(part) == 1).all()) for part in parts) and all(
        one[-1] + 1 == two[0] for one, two in itertools.pairwise(parts)
    )


@contextmanager
def _custom_ids() -> Iterator[Callable[[str, int], int]]:
    """Provide (custom_id, line) -> the line that used it first, in bounded memory by a temporary file."""
    with closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE used (custom_id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")

        def first_use(custom_id: str, line: int) -> int:
            key = custom_id.encode("utf-8", "surrogatepass")
            try:
                database.execute("INSERT OR IGNORE INTO used VALUES (?, ?)", (key, line))
                return database.execute("SELECT line FROM used WHERE custom_id = ?", (key,)).fetchone()[0]
            except sqlite3.OperationalError as error:
                message = f"temporary file of custom_ids: {error}; let SQLITE_TMPDIR name a folder with room"
                raise OSError(message) from error

        yield first_use


def _read(number: int, line: bytes, inputs: Inputs, first_use: Callable[[str, int], int]) -> BatchLine:
    custom_id = None
    try:
        value = parse_object(line)
        found = value.get("custom_id")
        custom_id = found if isinstance(found, str) else None
        if custom_id is not None and (first := first_use(custom_id, number)) != number:
            raise ValueError(f"custom_id: {custom_id!r} is that of line {first}, too")
        return BatchLine(number, custom_id, read_request(value, inputs))
    except (ValueError, TypeError) as error:
        return BatchLine(number, custom_id, fault=f"line {number}: {error}")
