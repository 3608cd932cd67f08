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
    SortedParts,
    TextSource,
    require_one_kind,
)

BATCH_ROWS = 1024
MAX_GROUP_ROWS = 1 << 16
MAX_GROUP_BYTES = 1 << 26


class ParquetRows(TextSource):
    unit = "row"

    def __init__(self, path: Path, fields: RowFields = NO_FIELDS):
        self.path, self._fields = path, fields
        path.open("rb").close()  # pyarrow's message for a missing file has no name
        with self._open() as file:
            schema = file.schema_arrow
            self._groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        try:
            self._columns = columns_of(schema, fields)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        number, first = 0, 0
        while first < len(self._groups) and number + self._groups[first] <= start.row:
            number, first = number + self._groups[first], first + 1
        for batch in self._batches(range(first, len(self._groups))):
            skipped = min(max(0, start.row - number), batch.num_rows)
            for row in read_rows(batch, number, skipped, self._fields):
                yield row, Mark(row.number + 1, 0)
            number += batch.num_rows

    def _open(self) -> pq.ParquetFile:
        try:
            # Without pre_buffer and with a small buffer, only a batch's pages are in memory.
            return pq.ParquetFile(self.path, pre_buffer=False, buffer_size=1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def _batches(self, groups: range) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            if list(self._groups) != [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]:
                raise ValueError(f"{self.path}: has changed while it was read")
            batches = file.iter_batches(BATCH_ROWS, row_groups=list(groups), columns=self._columns)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except (pa.ArrowException, OSError) as error:
                    raise self._unreadable(error) from error
                yield batch

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(f"{self.path}: expected a Parquet file, but it cannot be read: {error}")


class ParquetScores:
    """Columns id, fields and error; missing values are null."""

    several = False

    def __init__(self, ids: IdKinds, columns: Columns):
        require_one_kind(ids, "Parquet")
        self._columns, self._schema = columns, schema_of("whole number" in ids, columns)

    def part(self, rows: list[OutputRow]) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(table_of(rows, self._schema, self._columns), sink)
        return sink.getvalue().to_pybytes()

    def join(self, parts: Iterable[SortedParts], file: BinaryIO) -> None:
        with pq.ParquetWriter(file, self._schema) as writer:
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
