"""JSON lines of texts or requests, and of scores."""

import gzip
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from hybridlm.files.json_lines import dump, finite, parse_object, write_in_order
from hybridlm.score_files.rows import (
    Columns,
    IdKinds,
    InputRow,
    Kind,
    Lists,
    OutputRow,
    RowOf,
    ScoreTarget,
    SortedParts,
)


def json_row(row: RowOf, number: int, line: bytes) -> InputRow:
    try:
        return row(number, parse_object(line), len(line))
    except ValueError as error:
        return InputRow(number, None, "", None, len(line), str(error))


def json_target(ids: IdKinds, columns: Columns, gzipped: bool = False) -> ScoreTarget:
    """Return the format with one line per row: id and fields, or id and error."""
    del ids

    def part(rows: list[OutputRow]) -> bytes:
        lines = [
            {"id": row.id, "error": row.error} if row.fields is None else {"id": row.id, **_object(row.fields, columns)}
            for row in rows
        ]
        return "".join(dump(line) + "\n" for line in lines).encode("ascii")

    return ScoreTarget(part, write_compressed if gzipped else _join, several=True)


def _object(fields: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    return {
        name: [_object(completion, columns) for completion in value]
        if name == "completions"
        else json_value(value, columns.get(name))
        for name, value in fields.items()
    }


def lines_of(parts: Iterable[SortedParts]) -> Iterator[bytes]:
    """Yield the lines of parts in the order of the rows."""
    for contents, order in parts:
        lines = (line for content in contents for line in content().splitlines(keepends=True))
        if order is not None:
            window = list(lines)
            lines = (window[place] for place in np.argsort(order))
        yield from lines


def write_compressed(parts: Iterable[SortedParts], file: BinaryIO, lines: Any = lines_of) -> None:
    """Write compressed lines; one sort window is in memory."""
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:  # without name and time
        compressed.writelines(lines(parts))


def _join(parts: Iterable[SortedParts], file: BinaryIO) -> None:
    """Write all lines; one part is in memory."""
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
