"""Scoring a file of texts: JSON lines in, JSON lines out in the same order, nothing half written."""

import errno
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from hybridlm._errors import NumericalError
from hybridlm._json_lines import Id, dump, finite, numbered_lines, parse_object, read_id, read_item
from hybridlm._results import Score

WINDOW_BYTES = 16_000_000
"""A window of lines is scored before more is read, however large the file is."""

Encode = Callable[[Any, str], tuple[int, ...]]
ScoreAll = Callable[[Sequence[tuple[int, ...]]], list[Score]]


@dataclass(frozen=True)
class ScoreFileReport:
    """What `LM.score_file` has done.

    Attributes:
        texts: lines that were scored.
        bad_lines: lines that became a row with `error`.
        tokens: tokens of the texts.
    """

    texts: int
    bad_lines: int
    tokens: int


@dataclass(frozen=True)
class _Line:
    """A line of the input: its token ids, or what is wrong with it."""

    number: int
    id: Id
    token_ids: tuple[int, ...] = ()
    fault: str | None = None


def score_file(
    encode: Encode,
    score: ScoreAll,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    strict: bool = False,
    window: int = 256,
    progress: bool | None = None,
) -> ScoreFileReport:
    """Score every line of a file; see `LM.score_file`.

    Args:
        encode: (text or token ids, what to call it) -> token ids that the model can score; raises ValueError or
            TypeError.
        score: scores of such token ids, in order.
        input, output: the files.
        strict: raise at the first bad line.
        window: lines that are scored together; fewer where they are long.
        progress: None shows a bar where standard error is a terminal.
    """
    texts = bad_lines = tokens = 0
    with open(input, "rb") as source, _replacing(Path(output), Path(input)) as target, _bar(progress) as bar:
        done, total = 0, os.fstat(source.fileno()).st_size
        for numbered in _windows(numbered_lines(source), window):
            lines = [_read(number, line, encode) for number, line in numbered]
            if strict:
                _refuse(lines, input)
            scores = iter(score([line.token_ids for line in lines if line.fault is None]))
            for line in lines:
                scored = next(scores) if line.fault is None else None
                if scored is not None and scored.first_nan is not None:
                    fault = str(NumericalError(f"line {line.number}", scored.first_nan))
                    line, scored = _Line(line.number, line.id, fault=fault), None
                    if strict:
                        _refuse([line], input)
                if scored is None:
                    bad_lines += 1
                    target.write(dump({"id": line.id, "error": line.fault}) + "\n")
                else:
                    texts, tokens = texts + 1, tokens + len(scored.token_ids)
                    target.write(dump(_row(line.id, scored)) + "\n")
            done += sum(len(line) + 1 for _, line in numbered)
            bar(done, total)
    return ScoreFileReport(texts, bad_lines, tokens)


def _windows(lines: Iterable[tuple[int, bytes]], most: int) -> Iterator[list[tuple[int, bytes]]]:
    window, size = [], 0
    for number, line in lines:
        window.append((number, line))
        size += len(line)
        if len(window) >= most or size >= WINDOW_BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


def _read(number: int, line: bytes, encode: Encode) -> _Line:
    id = None
    try:
        value = parse_object(line)
        id = read_id(value)
        key, item = read_item(value, ("text",))
        return _Line(number, id, encode(item, key))
    except (ValueError, TypeError) as error:
        return _Line(number, id, fault=f"line {number}: {error}")


def _refuse(lines: Iterable[_Line], input: str | os.PathLike[str]) -> None:
    for line in lines:
        if line.fault is not None:
            raise ValueError(f"{os.fspath(input)}: {line.fault}")


def _row(id: Id, score: Score) -> dict[str, Any]:
    return {
        "id": id,
        "token_ids": score.token_ids,
        "logprobs": [finite(value) for value in score.logprobs.tolist()],
        "sum_logprob": finite(score.sum_logprob),
        "perplexity": finite(score.perplexity),
    }


@contextmanager
def _replacing(output: Path, input: Path) -> Iterator[TextIO]:
    """A file beside `output` that takes its name once everything is written, and is gone if anything fails."""
    output = Path(os.path.realpath(output))
    if not output.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(output.parent))
    if output.exists():
        if not output.is_file():
            # Renaming over it would replace a directory or a device such as /dev/null.
            raise ValueError(f"{output}: expected a file or a new name, found something that is no regular file")
        if output.samefile(input):
            raise ValueError(f"{output}: is the input, too; give another name")
    partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("x", encoding="ascii", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _bar(show: bool | None) -> Iterator[Callable[[int, int], None]]:
    """A bar over the bytes of the input."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done, total: None
        return
    columns = (TextColumn("scoring"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # Without a terminal the bar is written once, when it is done.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("score", total=None)
        # A pipe has no size.
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
