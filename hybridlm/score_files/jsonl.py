"""JSON lines of texts or requests, and of scores."""

import gzip
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hybridlm.files.json_lines import dump, finite, parse_object, write_in_order
from hybridlm.score_files.lines import TextLines
from hybridlm.score_files.rows import Columns, IdKinds, InputRow, Kind, Lists, OutputRow, SortedParts, TextObjects


class JsonLines(TextLines):
    def __init__(self, path: Path, reader: TextObjects):
        super().__init__(path)
        self._reader, self.id_name = reader, reader.id_name

    def _row(self, number: int, line: bytes) -> InputRow:
        try:
            return self._reader.row(number, parse_object(line), len(line))
        except ValueError as error:
            return InputRow(number, None, "", None, len(line), str(error))


class JsonScores:
    """One line per row: id and fields, or id and error."""

    several = True

    def __init__(self, ids: IdKinds, columns: Columns, gzipped: bool = False):
        del ids
        self._columns, self._gzipped = columns, gzipped

    def part(self, rows: list[OutputRow]) -> bytes:
        lines = [
            {"id": row.id, "error": row.error} if row.fields is None else {"id": row.id, **self._object(row.fields)}
            for row in rows
        ]
        return "".join(dump(line) + "\n" for line in lines).encode("ascii")

    def _object(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: [self._object(completion) for completion in value]
            if name == "completions"
            else json_value(value, self._columns.get(name))
            for name, value in fields.items()
        }

    def lines(self, parts: Iterable[SortedParts]) -> Iterator[bytes]:
        for contents, order in parts:
            lines = (line for content in contents for line in content().splitlines(keepends=True))
            if order is not None:
                window = list(lines)
                lines = (window[place] for place in np.argsort(order))
            yield from lines

    def join(self, parts: Iterable[SortedParts], file: BinaryIO) -> None:
        """Write all lines; one part, or a compressed sort window, is in memory."""
        if self._gzipped:
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:  # without name and time
                compressed.writelines(self.lines(parts))
            return
        for contents, order in parts:
            if order is None:
                for content in contents:
                    file.write(content())
            else:
                write_in_order(contents, order, file)


def json_value(value: Any, kind: Kind | None) -> Any:
    """Return a value as JSON; NaN, infinity and rank 0 become None."""
    if isinstance(value, Lists):
        entries = json_value(value.entries, None)
        return [entries[begin:end] for begin, end in itertools.pairwise(value.offsets.tolist())]
    if isinstance(value, np.ndarray):
        values = value.tolist()
        none = ~np.isfinite(value) if value.dtype.kind == "f" else value == 0 if kind == "ranks" else np.zeros(0)
        for place in np.flatnonzero(none).tolist():
            values[place] = None
        return values
    return finite(value) if isinstance(value, float) else value
