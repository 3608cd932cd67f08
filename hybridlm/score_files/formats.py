"""Formats of input and output files, chosen by the ending of the name."""

import stat
import zlib
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from hybridlm.errors import require_extra
from hybridlm.files.atomic import replaceable
from hybridlm.score_files.csv_rows import csv_target, open_csv
from hybridlm.score_files.jsonl import json_row, json_target
from hybridlm.score_files.lines import LINE_ENDS, open_text_lines
from hybridlm.score_files.options import FileOptions
from hybridlm.score_files.rows import (
    NO_FIELDS,
    Columns,
    IdKinds,
    RowFields,
    ScoreTarget,
    TextSource,
    csv_columns,
    row_of,
)

LINES = (".jsonl", ".jsonl.gz")
TABLES = (*LINES, ".csv", ".csv.gz", ".parquet")
TEXTS = (*TABLES, ".txt", ".txt.gz")


def ending_of(path: Path) -> str:
    suffixes = path.suffixes[-2:] if path.suffix.lower() == ".gz" else [path.suffix]
    return "".join(suffixes).lower()


def require_ending(path: Path, endings: tuple[str, ...]) -> str:
    """Return the ending; raises ValueError if unknown, MissingExtra for Parquet without pyarrow."""
    ending = ending_of(path)
    if ending not in endings:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(endings[:-1])} or {endings[-1]}")
    if ending == ".parquet":
        require_extra(f"{path}: Parquet", "pyarrow", "data")
    return ending


def check_source(path: Path, requests: bool = False) -> str:
    """Return the ending of a file of texts or requests.

    Raises:
        ValueError, MissingExtra: as `require_ending`, or no regular file.
    """
    ending = require_ending(path, LINES if requests else TEXTS)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: expected a regular file: it is read twice, and once more to continue")
    return ending


def check_file(input: Path, output: Path, options: FileOptions, requests: bool = False) -> Path:
    """Check names and places before a model is loaded; return the output's path."""
    path = check_output(input, output, options)
    require_ending(path, TABLES)
    check_source(input, requests)
    return path


def check_output(input: Path, output: Path, options: FileOptions) -> Path:
    """Return the output's path with the shard in its name; see `replaceable`."""
    index, count = options.share
    if count > 1:
        begin = len(output.name) - len(ending_of(output))
        output = output.with_name(f"{output.name[:begin]}-{index:05}-of-{count:05}{output.name[begin:]}")
    return replaceable(output, input)


def open_source(path: Path, fields: RowFields = NO_FIELDS, request: tuple[str, ...] | None = None) -> TextSource:
    """Open a file of texts or requests; raises as `check_source`, or ValueError for no texts."""
    ending = check_source(path, request is not None)
    if ending == ".parquet":
        # pyarrow is an extra, which nothing else may import.
        from hybridlm.score_files.parquet import open_parquet

        return open_parquet(path, fields)
    row = partial(row_of, fields, request)
    if ending in LINES:
        return open_text_lines(path, partial(json_row, row))
    if ending.startswith(".csv"):
        return open_csv(path, partial(csv_columns, fields), row)
    if names := [name for name in fields if name is not None]:
        raise ValueError(f"{path}: lines of text have no field {names[0]!r}; give .jsonl, .csv or .parquet")
    return open_text_lines(path, blanks=LINE_ENDS)


def target_for(path: Path) -> Callable[[IdKinds, Columns], ScoreTarget]:
    ending = ending_of(path)
    if ending == ".parquet":
        from hybridlm.score_files.parquet import parquet_target

        return parquet_target
    return partial(csv_target if ending.startswith(".csv") else json_target, gzipped=ending.endswith(".gz"))


def format_version(path: Path) -> str:
    ending = ending_of(path)
    if ending == ".parquet":
        return f"{ending} by pyarrow {version('pyarrow')}"
    return f"{ending} by zlib {zlib.ZLIB_RUNTIME_VERSION}" if ending.endswith(".gz") else ending
