"""Parquet files of texts and scores, in batches of rows."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hybridlm.score_files.arrow import columns_of, read_rows, schema_of, table_of
from hybridlm.score_files.rows import (
    NO_FIELDS,
    Columns,
    IdKinds,
    InputRow,
    Mark,
    OutputRow,
    RowFields,
    ScoreTarget,
    SortedParts,
    TextSource,
    require_one_kind,
)

BATCH_ROWS = 1024
MAX_GROUP_ROWS = 1 << 16
MAX_GROUP_BYTES = 1 << 26


def open_parquet(path: Path, fields: RowFields = NO_FIELDS) -> TextSource:
    """Open a file of texts; raises ValueError for a damaged file or other columns."""
    path.open("rb").close()  # pyarrow's message for a missing file has no name
    with _open(path) as file:
        schema, groups = file.schema_arrow, _group_rows(file)
    try:
        columns = columns_of(schema, fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None

    def rows(start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        number, first = 0, 0
        while first < len(groups) and number + groups[first] <= start.row:
            number, first = number + groups[first], first + 1
        for batch in _batches(path, groups, first, columns):
            skipped = min(max(0, start.row - number), batch.num_rows)
            for row in read_rows(batch, number, skipped, fields):
                yield row, Mark(row.number + 1, 0)
            number += batch.num_rows

    return TextSource(path, "row", rows)


def _open(path: Path) -> pq.ParquetFile:
    try:
        # Without pre_buffer and with a small buffer, only a batch's pages are in memory.
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _group_rows(file: pq.ParquetFile) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]


def _batches(path: Path, groups: list[int], first: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with _open(path) as file:
        if groups != _group_rows(file):
            raise ValueError(f"{path}: has changed while it was read")
        batches = file.iter_batches(BATCH_ROWS, row_groups=list(range(first, len(groups))), columns=columns)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(path, error) from error
            yield batch


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: expected a Parquet file, but it cannot be read: {error}")


def parquet_target(ids: IdKinds, columns: Columns) -> ScoreTarget:
    """Return the format with columns id, fields and error; missing values are null."""
    require_one_kind(ids, "Parquet")
    schema = schema_of("whole number" in ids, columns)

    def part(rows: list[OutputRow]) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(table_of(rows, schema, columns), sink)
        return sink.getvalue().to_pybytes()

    def join(parts: Iterable[SortedParts], file: BinaryIO) -> None:
        with pq.ParquetWriter(file, schema) as writer:
            gathered: list[pa.Table] = []
            for table in _tables(parts):
                gathered.append(table)
                if (
                    sum(table.num_rows for table in gathered) >= MAX_GROUP_ROWS
                    or sum(table.nbytes for table in gathered) >= MAX_GROUP_BYTES
                ):
                    _write_group(writer, gathered)
                    gathered = []
            if gathered:
                _write_group(writer, gathered)

    return ScoreTarget(part, join)


def _tables(parts: Iterable[SortedParts]) -> Iterator[pa.Table]:
    for contents, order in parts:
        tables = (pq.read_table(pa.BufferReader(content())) for content in contents)
        if order is None:
            yield from tables
            continue
        unsorted, places = pa.concat_tables(tables), np.argsort(order)
        for first in range(0, places.size, BATCH_ROWS):
            yield unsorted.take(places[first : first + BATCH_ROWS])


def _write_group(writer: pq.ParquetWriter, tables: list[pa.Table]) -> None:
    table = pa.concat_tables(tables).combine_chunks()
    writer.write_table(table, row_group_size=table.num_rows)
