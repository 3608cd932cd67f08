"""Formats of files of texts and of scores, chosen by the ending of the name."""

import stat
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from hybridlm.errors import require_extra
from hybridlm.files.atomic import replaceable
from hybridlm.score_files.options import FileOptions
from hybridlm.score_files.rows import NO_FIELDS, Columns, IdKinds, RowFields, ScoreTarget, TextSource


def format_of(path: Path, *others: str) -> str:
    """Return ".jsonl", ".parquet" or one of `others`, by the ending of the name.

    Raises:
        ValueError: another ending.
        MissingExtra: Parquet without pyarrow.
    """
    ending, known = path.suffix.lower(), (".jsonl", ".parquet", *others)
    if ending not in known:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(known[:-1])} or {known[-1]}")
    if ending == ".parquet":
        require_extra(f"{path}: Parquet", "pyarrow", "data")
    return ending


def check_source(path: Path, requests: bool = False) -> str:
    """Return the ending of a file of texts, ".txt" or as `format_of`.

    Args:
        path: the file.
        requests: its rows are requests, which JSON lines alone can hold.

    Raises:
        ValueError, MissingExtra: as `format_of`; or it is no regular file.
        OSError: it is not there.
    """
    if requests and path.suffix.lower() != ".jsonl":
        raise ValueError(f"{path}: expected requests as JSON lines, a name that ends in .jsonl")
    ending = format_of(path, ".txt")
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: expected a regular file: it is read twice, and once more to continue")
    return ending


def check_file(input: Path, output: Path, options: FileOptions, requests: bool = False) -> Path:
    """Return the path of the output; check names and places before a model is loaded.

    Args:
        input, output: the files.
        options: of the run.
        requests: the rows are requests, which JSON lines alone can hold.

    Raises:
        ValueError, OSError, MissingExtra: the name or the place of a file is wrong.
    """
    path = check_output(input, output, options)
    target_for(path)
    check_source(input, requests)
    return path


def check_output(input: Path, output: Path, options: FileOptions) -> Path:
    """Return the path of the output, with the shard in its name; raises ValueError or OSError."""
    index, count = options.share
    if count > 1:
        output = output.with_name(f"{output.stem}-{index:05}-of-{count:05}{output.suffix}")
    return replaceable(output, input)


def open_source(path: Path, fields: RowFields = NO_FIELDS, request: tuple[str, ...] | None = None) -> TextSource:
    """Open a file of texts, JSON lines, Parquet or text (.txt) of which every line is a text, or of requests.

    Args:
        path: the file.
        fields: names of the fields or columns beside those of texts.
        request: fields of JSON lines that are requests; None for texts.

    Raises:
        ValueError, MissingExtra: as `format_of`; or the file cannot hold texts.
        OSError: it cannot be read.
    """
    ending = check_source(path, request is not None)
    if ending != ".parquet":
        from hybridlm.score_files.jsonl import JsonLines, TextLines

        if ending == ".jsonl":
            return JsonLines(path, fields, request)
        if named := [one for one in fields if one is not None]:
            raise ValueError(f"{path}: lines of text have no field {named[0]!r}; give .jsonl or .parquet")
        return TextLines(path)
    # pyarrow is an extra, which nothing else may import.
    from hybridlm.score_files.parquet import ParquetRows

    return ParquetRows(path, fields)


def target_for(path: Path) -> Callable[[IdKinds, Columns], ScoreTarget]:
    """Return the class of an output's format, which takes the kinds of the ids and the columns; see `format_of`."""
    if format_of(path) == ".jsonl":
        from hybridlm.score_files.jsonl import JsonScores

        return JsonScores
    from hybridlm.score_files.parquet import ParquetScores

    return ParquetScores


def format_version(path: Path) -> str:
    """Return the format of an output, with the version of its writer if the bytes depend on it."""
    ending = format_of(path)
    return ending if ending == ".jsonl" else f"{ending} by pyarrow {version('pyarrow')}"
