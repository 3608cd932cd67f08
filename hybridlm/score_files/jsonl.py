"""Lines of texts, JSON or plain, read from any line on, and JSON lines of scores."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hybridlm.files.json_lines import dump, finite, parse_object, read_id, read_item, write_in_order
from hybridlm.score_files.rows import (
    NO_FIELDS,
    Columns,
    IdKinds,
    InputRow,
    Kind,
    Lists,
    Mark,
    OutputRow,
    RowFields,
    SortedParts,
    TextSource,
)
from hybridlm.scoring.items import form_of

OBJECTS = {"prompt", "messages"}
"""Forms of rows that are more than one text."""
FIELDS = ("text", "token_ids", "prompt", "completion", "messages", "tools", "chat_template_kwargs")
BLOCK_BYTES = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextLines(TextSource):
    """A file of texts, one per line; blank lines at its end do not count.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be read.
    """

    unit = "line"

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            self._end = _content_end(file)

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """Yield every line from `start` on; a line that cannot be read is a row with a fault."""
        number, offset = start
        with self.path.open("rb") as file:
            file.seek(offset)
            while offset < self._end:
                line = file.readline()
                if not line:
                    raise ValueError(f"{self.path}: has become shorter while it was read, it ends at byte {offset}")
                number, offset = number + 1, offset + len(line)
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                yield self._row(number, line.rstrip(b"\r\n")), Mark(number, offset)

    def _row(self, number: int, line: bytes) -> InputRow:
        try:
            return InputRow(number, None, "text", line.decode(), len(line))
        except UnicodeDecodeError as error:
            return InputRow(number, None, "", None, len(line), f"expected UTF-8: {error}")


class JsonLines(TextLines):
    """A file of JSON objects, one per line; blank lines at its end do not count.

    Args:
        path: the file.
        fields: names of the fields beside those of texts.
        request: fields of an object that is a request; None for texts.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, fields: RowFields = NO_FIELDS, request: tuple[str, ...] | None = None):
        super().__init__(path)
        self._fields, self._request = fields, request

    def _row(self, number: int, line: bytes) -> InputRow:
        return _read(number, line, self._fields, self._request)


def _read(number: int, line: bytes, fields: RowFields, request: tuple[str, ...] | None) -> InputRow:
    id = None
    try:
        value = parse_object(line)
        id = read_id(value)
        for name, what in (
            (fields.chosen, "token ids, a list"),
            (fields.interventions, "interventions, a list of objects"),
        ):
            if name is not None and name not in value:
                raise ValueError(f"{name}: expected {what} or null; found no field")
        if request is not None:
            key, item = "request", {name: value[name] for name in request if name in value}
        elif (key := form_of(value)) in OBJECTS:
            item = {name: value[name] for name in FIELDS if value.get(name) is not None}
        else:
            key, item = read_item(value, ("text",))
        return InputRow(
            number, id, key, item, len(line), None, *(None if one is None else value.get(one) for one in fields)
        )
    except ValueError as error:
        return InputRow(number, id, "", None, len(line), str(error))


def _content_end(file: BinaryIO) -> int:
    """Return the offset behind the last byte that is not white space; 0 if there is only a byte-order mark."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - BLOCK_BYTES)
        file.seek(begin)
        block = file.read(end - begin).rstrip()
        if block:
            return 0 if begin == 0 and block == BYTE_ORDER_MARK else begin + len(block)
        end = begin
    return 0


class JsonScores:
    """One line per row: id and fields, or id and error.

    Args:
        ids: ignored; lines hold ids of all kinds.
        columns: names of the fields.
    """

    several = True

    def __init__(self, ids: IdKinds, columns: Columns):
        del ids
        self._columns = columns

    def part(self, rows: list[OutputRow]) -> bytes:
        """Return rows as lines of JSON."""
        lines = [
            {"id": row.id, "error": row.error} if row.fields is None else {"id": row.id, **self._object(row.fields)}
            for row in rows
        ]
        return "".join(dump(line) + "\n" for line in lines).encode("ascii")

    def _object(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: [self._object(one) for one in value]
            if name == "completions"
            else _json(value, self._columns.get(name))
            for name, value in fields.items()
        }

    def join(self, parts: Iterable[SortedParts], file: BinaryIO) -> None:
        """Write the lines of all parts to a file, in the order of the input."""
        for contents, order in parts:
            if order is None:
                for one in contents:
                    file.write(one())
            else:
                write_in_order(contents, order, file)


def _json(value: Any, kind: Kind | None) -> Any:
    """Return a value of a row as JSON."""
    if isinstance(value, Lists):
        entries = _json(value.entries, None)
        return [entries[begin:end] for begin, end in itertools.pairwise(value.offsets.tolist())]
    if isinstance(value, np.ndarray):
        values = value.tolist()
        none = ~np.isfinite(value) if value.dtype.kind == "f" else value == 0 if kind == "ranks" else np.zeros(0)
        for place in np.flatnonzero(none).tolist():
            values[place] = None
        return values
    return finite(value) if isinstance(value, float) else value
