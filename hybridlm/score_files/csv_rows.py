"""CSV files of texts, requests and scores: UTF-8, commas, double quotes, names first (RFC 4180)."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hybridlm.files.json_lines import dump
from hybridlm.score_files.jsonl import JsonScores, json_value
from hybridlm.score_files.lines import BYTE_ORDER_MARK, MAX_RECORD_BYTES, TextLines, open_lines
from hybridlm.score_files.rows import (
    Columns,
    IdKinds,
    InputRow,
    Mark,
    OutputRow,
    SortedParts,
    TextObjects,
    require_one_kind,
)
from ir_passes.files.strict_json import parse_json


class CsvRows(TextLines):
    """A CSV file of texts or requests, perhaps .gz; an empty cell is null.

    Raises:
        ValueError: damaged gzip or CSV, or a missing or duplicate column.
    """

    unit = "row"

    def __init__(self, path: Path, reader: TextObjects):
        super().__init__(path)
        self._most = MAX_RECORD_BYTES + 1
        self._reader, self.id_name = reader, reader.id_name
        # Python's limit, for all readers of the process, is 131,072 characters.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
        self._names, self._start = next(self._records(Mark(0, 0)), ([], Mark(0, 0)))
        try:
            self._columns = reader.columns(self._names)
        except ValueError as error:
            commas = "" if len(self._names) > 1 else " (cells are separated by commas, names are in the first row)"
            raise ValueError(f"{path}: {error}{commas}") from None

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """Yield rows from `start` on; a wrong cell gives a fault."""
        offset = max(start.offset, self._start.offset)
        for cells, mark in self._records(Mark(start.row, offset)):
            yield self._cells(mark.row - 1, cells, mark.offset - offset), mark
            offset = mark.offset

    def _records(self, start: Mark) -> Iterator[tuple[list[str], Mark]]:
        """Yield records and the marks behind them; raises ValueError for wrong quotes."""
        number, begin = start
        offset = begin

        def lines() -> Iterator[str]:
            nonlocal offset
            while offset < self._end:
                line = self._read_line(file, number, offset)
                offset += len(line)
                if offset - begin > MAX_RECORD_BYTES:
                    raise csv.Error(f"it has more than {MAX_RECORD_BYTES:,} bytes, or a quote is not closed")
                line = line.removeprefix(BYTE_ORDER_MARK) if begin == 0 else line
                yield line.decode("utf-8", "surrogateescape")

        with open_lines(self.path) as file:
            file.seek(offset)
            try:
                for cells in csv.reader(lines(), strict=True):
                    yield cells, Mark(number + 1, offset)
                    number, begin = number + 1, offset
            except csv.Error as error:
                raise ValueError(
                    f"{self.path}: {self.unit} {number}: expected cells with commas between them, in double quotes if "
                    f"they have commas, quotes or line ends, but {error}; write the file by a CSV library, or as .jsonl"
                ) from error

    def _cells(self, number: int, cells: Sequence[str], size: int) -> InputRow:
        try:
            if len(cells) != len(self._names):
                raise ValueError(
                    f"expected {len(self._names)} cells ({', '.join(self._names)}), got {len(cells)}; write a cell for "
                    "each column, and double quotes around a cell with commas"
                )
            named = dict(zip(self._names, cells, strict=True))
            value = {name: _value(name, named[name], is_json) for name, is_json in self._columns.items()}
        except ValueError as error:
            return InputRow(number, None, "", None, size, str(error))
        return self._reader.row(number, value, size)


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


class CsvScores(JsonScores):
    """Columns id, fields and error; lists are JSON, a missing value is an empty cell.

    A part has one JSON string per record, because records can have several lines.
    """

    several = False

    def __init__(self, ids: IdKinds, columns: Columns, gzipped: bool = False):
        require_one_kind(ids, "CSV")
        super().__init__(ids, columns, gzipped)
        self._names = list(dict.fromkeys(["id", *columns, "error"]))

    def part(self, rows: list[OutputRow]) -> bytes:
        each: list[dict[str, Any]] = [{"error": row.error, **(row.fields or {}), "id": row.id} for row in rows]
        cells = ([_cell(json_value(row.get(name), self._columns.get(name))) for name in self._names] for row in each)
        return "".join(dump(_record(record)) + "\n" for record in cells).encode("ascii")

    def lines(self, parts: Iterable[SortedParts]) -> Iterator[bytes]:
        yield _record(self._names).encode()
        for line in super().lines(parts):
            yield parse_json(line).encode()

    def join(self, parts: Iterable[SortedParts], file: BinaryIO) -> None:
        if self._gzipped:
            super().join(parts, file)
        else:
            file.writelines(self.lines(parts))


def _cell(value: Any) -> str:
    if isinstance(value, str):
        # Messages may quote lone surrogates, which UTF-8 cannot hold.
        return value.encode("utf-8", "backslashreplace").decode()
    return "" if value is None else dump(value)


def _record(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
