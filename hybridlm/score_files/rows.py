"""Rows of texts and of scores, and the interfaces of their files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from hybridlm.files.json_lines import Id, read_id
from hybridlm.files.parts import Contents
from hybridlm.scoring.items import FORMS, MASK, form_of, is_several


class Mark(NamedTuple):
    """A place between two rows of a file.

    Attributes:
        row, offset: rows before it, and bytes in formats with lines.
    """

    row: int
    offset: int


START = Mark(0, 0)


class RowFields(NamedTuple):
    """Names of the fields with chosen ids and interventions, or None."""

    chosen: str | None = None
    interventions: str | None = None


NO_FIELDS = RowFields()


class InputRow(NamedTuple):
    """A row of the input.

    Attributes:
        number: in messages; lines count from 1, table rows from 0.
        key: field of the item.
        item: text, token ids, or an object with prompt or messages, unchecked.
        size: approximate bytes, by content.
        fault: reason of a row without an item.
        chosen, interventions: unchecked.
    """

    number: int
    id: Id
    key: str
    item: Any
    size: int
    fault: str | None = None
    chosen: Any = None
    interventions: Any = None

    @property
    def several(self) -> bool:
        return isinstance(self.item, dict) and is_several(self.item.get("completion"))


Kind = Literal["floats", "ids", "ranks", "flags", "number", "count", "text", "float lists", "id lists", "object"]
Columns = Mapping[str, Kind]
"""Names and kinds of output fields: "object" is any JSON; NaN and rank 0 become null."""


class Lists(NamedTuple):
    """A list for each token: entries `offsets[t]` to `offsets[t + 1]`."""

    entries: np.ndarray
    offsets: np.ndarray


class OutputRow(NamedTuple):
    """A row of the output: its fields, or its error.

    Attributes:
        fields: lists are arrays; tables omit fields without a column.
        shifted: completions scored from within the prompt.
    """

    id: Id
    fields: Mapping[str, Any] | None
    error: str | None
    tokens: int = 0
    shifted: int = 0
    generated: int = 0


@dataclass(frozen=True)
class TextSource:
    """A file of texts.

    Attributes:
        unit: "line" or "row", in messages.
        rows: yields rows from a mark on, and the mark after each, in bounded memory.
        close: deletes temporary files.
    """

    path: Path
    unit: str
    rows: Callable[[Mark], Iterator[tuple[InputRow, Mark]]]
    id_name: str = "id"
    close: Callable[[], None] = lambda: None


SortedParts = tuple[Contents, np.ndarray | None]
"""Parts of consecutive rows, and the row in each place; None in order."""


@dataclass(frozen=True)
class ScoreTarget:
    """A format of scores: functions of the rows alone.

    Attributes:
        several: rows may have several completions.
    """

    part: Callable[[list[OutputRow]], bytes]
    join: Callable[[Iterable[SortedParts], BinaryIO], None]
    several: bool = False


IdKinds = dict[str, int]
"""Kind of ids ("string", "whole number", ...) -> first row with it."""


def require_one_kind(ids: IdKinds, format: str) -> None:
    for kind in ("whole number beyond 64 bits", "string that UTF-8 cannot hold"):
        if kind in ids:
            place = f"id of row or line {ids[kind]}"
            raise ValueError(f"{place}: a {kind}, which {format} has no column for; write .jsonl")
    if len(ids) > 1:
        places = " and ".join(f"a {kind} in row or line {number}" for kind, number in ids.items())
        raise ValueError(f"ids: {places}, but a {format} column holds one kind; write .jsonl")


RowOf = Callable[[int, dict[str, Any], int], InputRow]
"""(number, object of a line or of the cells of a table, bytes) -> row."""
COLUMNS = ("id", *FORMS, "completion", MASK)
CHAT_FIELDS = ("tools", "chat_template_kwargs")
"""Further fields of objects with messages."""
TEXT_COLUMNS = ("id", "text", "prompt", "completion")
"""CSV columns with texts; others hold JSON."""


def named_columns(names: Sequence[str], fields: RowFields = NO_FIELDS) -> list[str]:
    """Return the columns to read; raises ValueError for missing or duplicate ones."""
    duplicate = sorted({name for name in COLUMNS if names.count(name) > 1})
    if duplicate:
        raise ValueError(f"column {duplicate[0]}: expected it once, found it {names.count(duplicate[0])} times")
    columns = [name for name in COLUMNS if name in names and (name != MASK or "input_ids" in names)]
    for option, name in {"token_ids": fields.chosen, "interventions": fields.interventions}.items():
        if name is not None and (name in COLUMNS or names.count(name) != 1):
            raise ValueError(f"{option}: expected the name of a column with them, {name!r} is none of {list(names)}")
    if not set(columns) & set(FORMS):
        raise ValueError(f"expected a column {' or '.join(FORMS)}, found {', '.join(names) or 'none'}")
    if ("prompt" in columns) != ("completion" in columns):
        raise ValueError(f"expected columns prompt and completion together, found {', '.join(names)}")
    return [*columns, *(name for name in fields if name is not None)]


def csv_columns(fields: RowFields, names: Sequence[str]) -> dict[str, bool]:
    """Return the columns of a CSV file to read, True for JSON; raises as `named_columns`."""
    columns = named_columns(names, fields)
    chat = [name for name in CHAT_FIELDS if name in names and "messages" in columns]
    return {name: name not in TEXT_COLUMNS for name in (*columns, *chat)}


def row_of(
    fields: RowFields, request: tuple[str, ...] | None, number: int, value: Mapping[str, Any], size: int
) -> InputRow:
    """Return an object's row: text, token ids, prompt, messages, or fields of a request."""
    id = None
    try:
        id = read_id(value)
        for name, kind in (
            (fields.chosen, "token ids, a list"),
            (fields.interventions, "interventions, a list of objects"),
        ):
            if name is not None and name not in value:
                raise ValueError(f"{name}: expected {kind} or null; found no field")
        key, item = _item(request, value)
    except ValueError as error:
        return InputRow(number, id, "", None, size, str(error))
    chosen, interventions = (None if name is None else value.get(name) for name in fields)
    return InputRow(number, id, key, item, size, None, chosen, interventions)


def _item(request: tuple[str, ...] | None, value: Mapping[str, Any]) -> tuple[str, Any]:
    if request is not None:
        return "request", {name: value[name] for name in request if name in value}
    form = form_of(value)
    if form in ("prompt", "messages"):
        names = (*FORMS, "completion", *CHAT_FIELDS)
        return form, {name: value[name] for name in names if value.get(name) is not None}
    kind, name = (str, "a string") if form == "text" else (list, "a list of token ids")
    if not isinstance(value[form], kind):
        raise ValueError(f"{form}: expected {name}, got {type(value[form]).__name__}")
    return form, value[form]
