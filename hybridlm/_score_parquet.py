"""Parquet for batch scoring: reading texts a batch of rows at a time, and writing scores. Needs pyarrow."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hybridlm._json_lines import Id
from hybridlm._results import known
from hybridlm._score_formats import IdKinds, InputRow, Mark, OutputRow

BATCH_ROWS = 1024
GROUP_ROWS = 1 << 16
GROUP_BYTES = 1 << 26
"""Parts are gathered into a row group of the output until it has so many rows or bytes."""

_TEXTS = ("text", "token_ids")


class ParquetRows:
    """A Parquet file with a column "text" (strings) or "token_ids" (lists of whole numbers), or both, and maybe "id".

    Raises:
        OSError: the file cannot be read.
        ValueError: not a Parquet file, or its columns are missing or of other types.
    """

    unit = "row"

    def __init__(self, path: Path):
        self._path = path
        path.open("rb").close()  # pyarrow's message for a file that is not there names no file
        with self._open() as file:
            schema = file.schema_arrow
            self._groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        twice = sorted({name for name in ("id", *_TEXTS) if schema.names.count(name) > 1})
        if twice:
            raise ValueError(f"{path}: column {twice[0]}: is there {schema.names.count(twice[0])} times")
        self._columns = [name for name in ("id", *_TEXTS) if name in schema.names]
        if not set(self._columns) & set(_TEXTS):
            found = ", ".join(schema.names) or "none"
            raise ValueError(f"{path}: expected a column {' or '.join(_TEXTS)}, found {found}")
        faults = [fault for name in self._columns if (fault := _type_fault(name, schema.field(name).type))]
        if faults:
            raise ValueError(f"{path}: {'; '.join(faults)}")

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """Every row from `start` on; one whose text is missing or not UTF-8 has a fault."""
        number, first = 0, 0
        while first < len(self._groups) and number + self._groups[first] <= start.row:
            number, first = number + self._groups[first], first + 1
        for batch in self._batches(range(first, len(self._groups))):
            skipped = min(max(0, start.row - number), batch.num_rows)
            number += skipped
            columns = (_values(batch, name, skipped) for name in ("id", *_TEXTS))
            for id, text, token_ids in zip(*columns, strict=True):
                yield _row(number, id, text, token_ids), Mark(number + 1, 0)
                number += 1

    def _open(self) -> pq.ParquetFile:
        try:
            # Without pre_buffer, and with a buffer, no more than the pages of a batch are held.
            return pq.ParquetFile(self._path, pre_buffer=False, buffer_size=1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def _batches(self, groups: range) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            if list(self._groups) != [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]:
                raise ValueError(f"{self._path}: has changed while it was read")
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
        return ValueError(f"{self._path}: expected a Parquet file, but it cannot be read: {error}")


def _type_fault(name: str, type: pa.DataType) -> str | None:
    value = type.value_type if pa.types.is_dictionary(type) else type
    string = any(is_(value) for is_ in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
    if name == "id":
        good, expected = string or pa.types.is_integer(value), "strings or whole numbers"
    elif name == "text":
        good, expected = string, "strings"
    else:
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        good = any(is_(type) for is_ in lists) and pa.types.is_integer(type.value_type)
        expected = "lists of whole numbers"
    # A column that only holds nulls has no type: every row is then without it.
    return None if good or pa.types.is_null(type) else f"column {name}: expected {expected}, found {type}"


def _row(number: int, id: Any, text: Any, token_ids: list[Any] | None) -> InputRow:
    for name, value in (("id", id), ("text", text)):
        if isinstance(value, UnicodeDecodeError):
            return InputRow(number, None if value is id else id, "", None, 0, f"{name}: expected UTF-8: {value}")
    if token_ids is None and text is not None:
        return InputRow(number, id, "text", text, len(text))
    if text is None and token_ids is not None:
        return InputRow(number, id, "token_ids", token_ids, 4 * len(token_ids))
    found = "none of them" if text is None else ", ".join(_TEXTS)
    return InputRow(number, id, "", None, 0, f"expected exactly one of {', '.join(_TEXTS)}, got {found}")


def _values(batch: pa.RecordBatch, name: str, skipped: int) -> list[Any]:
    """A column without its first rows, nulls where there is no such column; what is not UTF-8 is the error."""
    if name not in batch.schema.names:
        return [None] * (batch.num_rows - skipped)
    column = batch.column(name).slice(skipped)
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(one) for one in column]


def _value(one: pa.Scalar) -> Any:
    try:
        return one.as_py()
    except UnicodeDecodeError as error:
        return error


class ParquetScores:
    """Columns id, token_ids, logprobs, sum_logprob, perplexity and error; what a row does not have is null.

    Args:
        ids: kinds of the ids.

    Raises:
        ValueError: ids that one column cannot hold.
    """

    def __init__(self, ids: IdKinds):
        for kind in ("whole number beyond 64 bits", "string that UTF-8 cannot hold"):
            if kind in ids:
                raise ValueError(
                    f"id of row or line {ids[kind]}: a {kind}, which Parquet has no column for; write .jsonl"
                )
        if len(ids) > 1:
            where = " and ".join(f"a {kind} in row or line {number}" for kind, number in ids.items())
            raise ValueError(f"ids: {where}, but a Parquet column holds one kind; write .jsonl")
        self._schema = pa.schema(
            {
                "id": pa.int64() if "whole number" in ids else pa.string(),
                "token_ids": pa.list_(pa.int32()),
                "logprobs": pa.list_(pa.float32()),
                "sum_logprob": pa.float64(),
                "perplexity": pa.float64(),
                "error": pa.string(),
            }
        )

    def part(self, rows: list[OutputRow]) -> bytes:
        scores = [row.score for row in rows]
        ids: list[Id] = [row.id for row in rows]
        columns = {
            "id": ids,
            "token_ids": [None if one is None else one.token_ids for one in scores],
            "sum_logprob": [None if one is None else one.sum_logprob for one in scores],
            "perplexity": [None if one is None else known(one.perplexity) for one in scores],
            # Messages may quote what no UTF-8 can hold.
            "error": [row.error and row.error.encode("utf-8", "backslashreplace").decode() for row in rows],
        }
        arrays = [
            _logprobs(rows) if field.name == "logprobs" else pa.array(columns[field.name], field.type)
            for field in self._schema
        ]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_arrays(arrays, schema=self._schema), sink)
        return sink.getvalue().to_pybytes()

    def join(self, parts: Iterable[bytes], file: BinaryIO) -> None:
        with pq.ParquetWriter(file, self._schema) as writer:
            gathered: list[pa.Table] = []
            for part in parts:
                gathered.append(pq.read_table(pa.BufferReader(part)))
                if (
                    sum(one.num_rows for one in gathered) >= GROUP_ROWS
                    or sum(one.nbytes for one in gathered) >= GROUP_BYTES
                ):
                    _write_group(writer, gathered)
                    gathered = []
            if gathered:
                _write_group(writer, gathered)


def _logprobs(rows: list[OutputRow]) -> pa.Array:
    """The lists of all rows; what is not a number, as the first of each, is null."""
    arrays = [np.zeros(0, np.float32) if row.score is None else row.score.logprobs for row in rows]
    flat = np.concatenate(arrays)
    offsets = np.cumsum([0, *(len(one) for one in arrays)], dtype=np.int32)
    missing = np.array([row.score is None for row in rows])
    return pa.ListArray.from_arrays(offsets, pa.array(flat, mask=np.isnan(flat)), mask=pa.array(missing))


def _write_group(writer: pq.ParquetWriter, tables: list[pa.Table]) -> None:
    table = pa.concat_tables(tables).combine_chunks()
    writer.write_table(table, row_group_size=table.num_rows)
