"""Texts and scores as Arrow columns, for Parquet and Ray datasets."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hybridlm.requests.results import TokenLogprobs
from hybridlm.score_files.rows import (
    COLUMNS,
    NO_FIELDS,
    Columns,
    InputRow,
    Kind,
    OutputRow,
    RowFields,
    named_columns,
    row_of,
)
from hybridlm.scoring.items import MASK


def columns_of(schema: pa.Schema, fields: RowFields = NO_FIELDS) -> list[str]:
    """Return the columns to read.

    Texts are strings, token ids lists of integers, chosen ids the same or nested, messages and interventions lists of
    structs.

    Raises:
        ValueError: a column is missing, duplicate, or of another type.
    """
    columns = named_columns(schema.names, fields)
    faults = [fault for name in columns if (fault := _type_fault(name, schema.field(name).type, fields))]
    if faults:
        raise ValueError("; ".join(faults))
    return columns


def _item_type(type: pa.DataType) -> pa.DataType | None:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return type.value_type if any(is_list(type) for is_list in lists) else None


def _type_fault(name: str, type: pa.DataType, fields: RowFields) -> str | None:
    value, item = type.value_type if pa.types.is_dictionary(type) else type, _item_type(type)
    string = any(is_type(value) for is_type in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
    ids, structs = item is not None and pa.types.is_integer(item), item is not None and pa.types.is_struct(item)
    if pa.types.is_null(type) and name != fields.chosen:
        return None
    if name == "id":
        good, expected = string or pa.types.is_integer(value), "strings or whole numbers"
    elif name == "text":
        good, expected = string, "strings"
    elif name in ("messages", fields.interventions):
        good, expected = structs, f"lists of structs ({'role, content' if name == 'messages' else 'kind, ...'})"
    elif name in ("token_ids", "input_ids"):
        good, expected = ids, "lists of whole numbers"
    elif name == fields.chosen:
        entry = item if item is None else _item_type(item) or item
        good = entry is not None and (pa.types.is_integer(entry) or pa.types.is_null(entry))
        expected = "lists of whole numbers, or of lists of them"
    elif name == MASK:
        good, expected = True, "lists of numbers"
    else:
        good, expected = string or ids, "strings or lists of whole numbers (several completions are several rows)"
    return None if good else f"column {name}: expected {expected}, found {type}"


def read_rows(
    batch: pa.RecordBatch | pa.Table, first: int, skipped: int = 0, fields: RowFields = NO_FIELDS
) -> Iterator[InputRow]:
    """Yield the rows of a batch, with faults for missing and undecodable texts."""
    extra = [name for name in fields if name is not None]
    names = [*COLUMNS, *extra]
    columns = (_values(batch, name, skipped) for name in names)
    for number, values in enumerate(zip(*columns, strict=True), first + skipped):
        cells = dict(zip(names, values, strict=True))
        row = _row(number, cells, fields)
        size = sum(_size(cells[name]) for name in extra if cells[name] is not None)
        yield row._replace(size=size if row.fault is not None else size + _size(row.item))


def _row(number: int, cells: dict[str, Any], fields: RowFields) -> InputRow:
    for name, cell in cells.items():
        if isinstance(cell, UnicodeDecodeError):
            id = None if name == "id" else cells["id"]
            return InputRow(number, id, "", None, 0, f"{name}: expected UTF-8: {cell}")
    for name in ("messages", fields.interventions):
        if name in cells:
            cells[name] = _without_nulls(cells[name])
    return row_of(fields, None, number, cells, 0)


def _without_nulls(value: Any) -> Any:
    """Return a value without the nulls that tables add to structs."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _size(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, str) else 4


def _values(batch: pa.RecordBatch | pa.Table, name: str, skipped: int) -> list[Any]:
    """Return a column after `skipped` rows, with exceptions for undecodable values."""
    if name not in batch.schema.names:
        return [None] * (batch.num_rows - skipped)
    column = batch.column(name).slice(skipped)
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return list(map(_value, column))


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


_TYPES = {
    "floats": pa.list_(pa.float32()),
    "ids": pa.list_(pa.int32()),
    "ranks": pa.list_(pa.int32()),
    "flags": pa.list_(pa.bool_()),
    "number": pa.float64(),
    "count": pa.int32(),
    "text": pa.string(),
    "float lists": pa.list_(pa.list_(pa.float32())),
    "id lists": pa.list_(pa.list_(pa.int32())),
}


def schema_of(whole_numbers: bool, columns: Columns) -> pa.Schema:
    """Return the columns of an output; raises ValueError for any JSON."""
    wrong = [name for name, kind in columns.items() if kind not in _TYPES]
    if wrong:
        raise ValueError(f"column {wrong[0]}: expected an output of JSON lines: JSON objects have no column type")
    ids = pa.int64() if whole_numbers else pa.string()
    return pa.schema({"id": ids, **{name: _TYPES[kind] for name, kind in columns.items()}, "error": pa.string()})


def table_of(rows: Sequence[OutputRow], schema: pa.Schema, columns: Columns) -> pa.Table:
    """Return a table of rows, with nulls for missing fields.

    Raises:
        OverflowError: an id has more than 64 bits.
    """
    # Messages may quote lone surrogates, which UTF-8 cannot hold.
    errors = [row.error and row.error.encode("utf-8", "backslashreplace").decode() for row in rows]
    arrays = [pa.array([row.id for row in rows], schema.field("id").type)]
    for name, kind in columns.items():
        arrays.append(column_of([None if row.fields is None else row.fields.get(name) for row in rows], kind))
    return pa.Table.from_arrays([*arrays, pa.array(errors, pa.string())], schema=schema)


def column_of(values: Sequence[Any], kind: Kind) -> pa.Array:
    """Return a field's values; None, NaN and rank 0 are null."""
    if kind in ("float lists", "id lists"):
        empty = np.zeros(0, np.float32 if kind == "float lists" else np.int32)
        lists = [value for value in values if value is not None]
        counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(value.offsets) for value in lists)])
        entries = pa.array(np.concatenate([empty, *(value.entries for value in lists)]))
        places = pa.ListArray.from_arrays(_offsets(counts), entries)
        return _lists([None if value is None else len(value.offsets) - 1 for value in values], places)
    if kind in ("floats", "ranks"):
        empty = np.zeros(0, np.float32 if kind == "floats" else np.int32)
        flat = np.concatenate([empty, *(value for value in values if value is not None)])
        entries = pa.array(flat, mask=~np.isfinite(flat) if kind == "floats" else flat == 0)
        return _lists([None if value is None else len(value) for value in values], entries)
    return pa.array(values, _TYPES[kind])


def _lists(counts: Sequence[int | None], entries: pa.Array) -> pa.Array:
    missing = pa.array([count is None for count in counts], pa.bool_())
    return pa.ListArray.from_arrays(_offsets([count or 0 for count in counts]), entries, mask=missing)


def _offsets(counts: Sequence[int] | np.ndarray) -> pa.Array:
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    if total[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"scores: expected at most 2^31 - 1 numbers in a column, got {total[-1]:,}; use fewer rows")
    return pa.array(total.astype(np.int32))


def read_token_logprobs(table: pa.Table, kind: Literal["top", "chosen"]) -> list[TokenLogprobs | None]:
    wanted = [f"{kind}_{name}" for name in ("token_ids", "logprobs", "ranks") if (kind, name) != ("top", "ranks")]
    if kind not in ("top", "chosen") or any(name not in table.column_names for name in wanted):
        raise ValueError(f"kind: expected columns {', '.join(wanted)}, found {', '.join(table.column_names)}")
    rows: list[TokenLogprobs | None] = []
    for values in zip(*(table.column(name) for name in wanted), strict=True):
        if not values[0].is_valid:
            rows.append(None)
            continue
        offsets = np.concatenate([[0], np.cumsum(values[0].values.value_lengths().to_numpy(zero_copy_only=False))])
        ids, logprobs, *ranks = (value.values.flatten().to_numpy(zero_copy_only=False) for value in values)
        places = np.repeat(offsets[:-1], np.diff(offsets))
        ranked = ranks[0] if ranks else np.arange(1, len(ids) + 1, dtype=np.int32) - places.astype(np.int32)
        rows.append(TokenLogprobs(ids, logprobs, ranked, offsets.astype(np.int64)))
    return rows
