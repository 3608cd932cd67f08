"""What a file of texts and a file of scores are to batch scoring, and which format the ending of a name stands for."""

import stat
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from hybridlm._errors import require_extra
from hybridlm._json_lines import Id
from hybridlm._results import Score


class Mark(NamedTuple):
    """A place between two rows of a file.

    Attributes:
        row: rows before it.
        offset: bytes before it, where the format has lines.
    """

    row: int
    offset: int


START = Mark(0, 0)


class InputRow(NamedTuple):
    """A row of the input.

    Attributes:
        number: what it is called in messages: lines count from 1, rows of a table from 0.
        id: None where it has none, or none that can be read.
        key: the field that holds its text or token ids.
        item: the text or the token ids, unchecked.
        size: about how many bytes it takes, a function of its content.
        fault: what is wrong with it; then it has no item.
    """

    number: int
    id: Id
    key: str
    item: Any
    size: int
    fault: str | None = None


class OutputRow(NamedTuple):
    """A row of the output: its score, or what is wrong with it."""

    id: Id
    score: Score | None
    error: str | None


class Source(Protocol):
    """A file of texts.

    Attributes:
        unit: what a row is called in messages: "line" or "row".
    """

    unit: str

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """The rows from a mark on, each with the mark behind it; in bounded memory."""
        ...


class Target(Protocol):
    """A format of scores. What it writes is a function of the rows alone."""

    def part(self, rows: list[OutputRow]) -> bytes:
        """A part of the output, complete in itself."""
        ...

    def join(self, parts: Iterable[bytes], file: BinaryIO) -> None:
        """Write the whole output; holds a few parts in memory."""
        ...


IdKinds = dict[str, int]
"""Which kinds of ids a file has ("string", "whole number", ...), and the number of the first row that has it."""


def format_of(path: Path) -> str:
    """ ".jsonl" or ".parquet", by the ending of the name.

    Raises:
        ValueError: another ending.
        MissingExtra: Parquet without pyarrow.
    """
    ending = path.suffix.lower()
    if ending not in (".jsonl", ".parquet"):
        raise ValueError(f"{path}: expected a name that ends in .jsonl or .parquet")
    if ending == ".parquet":
        require_extra(f"{path}: Parquet", "pyarrow", "data")
    return ending


def open_source(path: Path) -> Source:
    """The rows of a file; raises as `format_of`, OSError, and ValueError for what cannot hold texts."""
    ending = format_of(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: expected a regular file: it is read twice, and once more to continue")
    if ending == ".jsonl":
        from hybridlm._score_json import JsonLines

        return JsonLines(path)
    # pyarrow is an extra: nothing else may need it.
    from hybridlm._score_parquet import ParquetRows

    return ParquetRows(path)


def target_for(path: Path) -> Callable[[IdKinds], Target]:
    """What makes the format of an output, once the kinds of its ids are known; raises as `format_of`."""
    if format_of(path) == ".jsonl":
        from hybridlm._score_json import JsonScores

        return JsonScores
    from hybridlm._score_parquet import ParquetScores

    return ParquetScores


def format_version(path: Path) -> str:
    """The format of an output, and the version of what writes it where that decides its bytes."""
    ending = format_of(path)
    return ending if ending == ".jsonl" else f"{ending} by pyarrow {version('pyarrow')}"
