"""CSV files of texts, requests and scores: UTF-8, commas, double quotes, names first (RFC 4180)."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hybridlm.files.json_lines import dump
from hybridlm.score_files.jsonl import json_value, lines_of, write_compressed
from hybridlm.score_files.lines import BYTE_ORDER_MARK, LINE_ENDS, MAX_RECORD_BYTES, content_end, open_lines, read_line
from hybridlm.score_files.rows import (
    START,
    Columns,
    IdKinds,
    InputRow,
    Mark,
    OutputRow,
    RowOf,
    ScoreTarget,
    SortedParts,
    TextSource,
    require_one_kind,
)
from ir_passes.files.strict_json import parse_json


def open_csv(
    path: Path, columns_of: Callable[[Sequence[str]], dict[str, bool]], row: RowOf, id_name: str = "id"
) -> TextSource:
    """Open a CSV file of texts or requests, perhaps .gz; an empty cell is null.

    Args:
        columns_of: names of the file -> columns to read, True for JSON; raises ValueError.

    Raises:
        ValueError: damaged gzip or CSV, or a missing or duplicate column.
    """
    end = content_end(path)
    # Python's limit, for all readers of the process, is 131,072 characters.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
    names, first = next(_records(path, end, START), ([], START))
    end = content_end(path, LINE_ENDS) if len(names) == 1 else end
    try:
        columns = columns_of(names)
    except ValueError as error:
        commas = "" if len(names) > 1 else " (cells are separated by commas, names are in the first row)"
        raise ValueError(f"{path}: {error}{commas}") from None

    def rows(start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        offset = max(start.offset, first.offset)
        for cells, mark in _records(path, end, Mark(start.row, offset)):
            number, size, offset = mark.row - 1, mark.offset - offset, mark.offset
            try:
                value = _values(names, columns, cells)
            except ValueError as error:
                yield InputRow(number, None, "", None, size, str(error)), mark
            else:
                yield row(number, value, size), mark

    return TextSource(path, "row", rows, id_name)


def _records(path: Path, end: int, start: Mark) -> Iterator[tuple[list[str], Mark]]:
    """Yield records and the marks after them; raises ValueError for wrong quotes."""
    number, begin = start
    offset = begin

    def lines() -> Iterator[str]:
        nonlocal offset
        while offset < end:
            line = read_line(file, MAX_RECORD_BYTES + 1, f"{path}: row {number}", offset)
            offset += len(line)
            if offset - begin > MAX_RECORD_BYTES:
                raise csv.Error(f"it has more than {MAX_RECORD_BYTES:,} bytes, or a quote is not closed")
            line = line.removeprefix(BYTE_ORDER_MARK) if begin == 0 else line
            yield line.decode("utf-8", "surrogateescape")

    with open_lines(path) as file:
        file.seek(offset)
        try:
            for cells in csv.reader(lines(), strict=True):
                yield cells, Mark(number + 1, offset)
                number, begin = number + 1, offset
        except csv.Error as error:
            raise ValueError(
                f"{path}: row {number}: expected cells with commas between them, in double quotes if they have "
                f"commas, quotes or line ends, but {error}; write the file by a CSV library, or as .jsonl"
            ) from error


def _values(names: Sequence[str], columns: Mapping[str, bool], cells: Sequence[str]) -> dict[str, Any]:
    if len(cells) != len(names):
        raise ValueError(
            f"expected {len(names)} cells ({', '.join(names)}), got {len(cells)}; write a cell for each column, and "
            "double quotes around a cell with commas"
        )
    named = dict(zip(names, cells, strict=True))
    return {name: _value(name, named[name], is_json) for name, is_json in columns.items()}


def _value(name: str, cell: str, is_json: bool) -> Any:
    try:
        cell.encode()
        return parse_json(cell) if cell and is_json else cell or None
    except UnicodeEncodeError as error:
        raise ValueError(
            f"column {name}: expected UTF-8, but it cannot be decoded at character {error.start}"
        ) from None
    except ValueError as error:
        excerpt = cell if len(cell) <= 60 else f"{cell[:57]}..."
        raise ValueError(
            f"column {name}: expected JSON, such as [5, 6, 7] for token ids, got {excerpt!r}: {error}"
        ) from None


def csv_target(ids: IdKinds, columns: Columns, gzipped: bool = False) -> ScoreTarget:
    """Return the format with columns id, fields and error.

    Lists are JSON, a missing value is an empty cell. A part has one JSON string per record, because records can have
    several lines.
    """
    require_one_kind(ids, "CSV")
    names = list(dict.fromkeys(["id", *columns, "error"]))

    def part(rows: list[OutputRow]) -> bytes:
        each: list[dict[str, Any]] = [{"error": row.error, **(row.fields or {}), "id": row.id} for row in rows]
        cells = ([_cell(json_value(row.get(name), columns.get(name))) for name in names] for row in each)
        return "".join(dump(_record(record)) + "\n" for record in cells).encode("ascii")

    def lines(parts: Iterable[SortedParts]) -> Iterator[bytes]:
        yield _record(names).encode()
        for line in lines_of(parts):
            yield parse_json(line).encode()

    def join(parts: Iterable[SortedParts], file: BinaryIO) -> None:
        file.writelines(lines(parts))

    return ScoreTarget(part, partial(write_compressed, lines=lines) if gzipped else join)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        # Messages may quote lone surrogates, which UTF-8 cannot hold.
        return value.encode("utf-8", "backslashreplace").decode()
    return "" if value is None else dump(value)


def _record(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
