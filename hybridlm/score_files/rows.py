"""Rows of texts and of scores, and the interfaces of files that hold them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np

from hybridlm.files.json_lines import Id
from hybridlm.files.parts import Contents


class Mark(NamedTuple):
    """A place between two rows of a file.

    Attributes:
        row: rows before it.
        offset: bytes before it, where the format has lines.
    """

    row: int
    offset: int


START = Mark(0, 0)


class RowFields(NamedTuple):
    """Names of the fields or columns of rows beside those of texts; None where rows have none.

    Attributes:
        chosen: with the chosen ids of each row.
        interventions: with what is changed inside the model in each row.
    """

    chosen: str | None = None
    interventions: str | None = None


NO_FIELDS = RowFields()


class InputRow(NamedTuple):
    """A row of the input.

    Attributes:
        number: its number in messages; lines count from 1, rows of a table from 0.
        id: None if it has none that can be read.
        key: the field that holds its text, token ids, prompt or messages.
        item: the text or the token ids, or an object with the prompt or the messages, unchecked.
        size: approximate number of bytes, a function of its content.
        fault: why it cannot be read; it has no item then.
        chosen, interventions: its chosen ids and what is changed in it, unchecked; None for none.
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
    def has_prompt(self) -> bool:
        """True if the row has a prompt or messages: only its last tokens are scored."""
        return self.key in ("prompt", "messages")

    @property
    def several(self) -> bool:
        """Whether the row has a list of completions."""
        given = self.item.get("completion") if isinstance(self.item, dict) else None
        return isinstance(given, list) and not all(isinstance(one, int) for one in given)


Kind = Literal["floats", "ids", "ranks", "flags", "number", "count", "text", "float lists", "id lists", "object"]
Columns = Mapping[str, Kind]
"""Names of the fields of an output, and what each has: lists of numbers, of ids, of ranks or of booleans, one number,
one whole number, one text, a list of numbers or ids for each token (`Lists`), any JSON. NaN and rank 0 become null."""


class Lists(NamedTuple):
    """A list for each token: entries `offsets[t]` to `offsets[t + 1]` are those of token t."""

    entries: np.ndarray
    offsets: np.ndarray


class OutputRow(NamedTuple):
    """A row of the output: its fields, or its error.

    Attributes:
        fields: field -> value; lists are arrays. Those that are none of the columns are written as JSON alone.
        tokens: number of tokens that the fields are of.
        shifted: number of completions that are scored from within the prompt.
        generated: number of tokens that were generated.
    """

    id: Id
    fields: Mapping[str, Any] | None
    error: str | None
    tokens: int = 0
    shifted: int = 0
    generated: int = 0


class TextSource:
    """A file of texts.

    Attributes:
        path: the file that is read.
        unit: the word for a row in messages, "line" or "row".
        id_name: field of the ids.
    """

    path: Path
    unit: str
    id_name = "id"

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """Yield the rows from a mark on, each with the mark behind it, in bounded memory."""
        raise NotImplementedError

    def close(self) -> None:
        """Delete temporary files."""


class ObjectReader(Protocol):
    """Makes rows of objects: JSON on lines, or the cells of CSV by the name of their column.

    Attributes:
        id_name: field of the ids.
    """

    id_name: str

    def columns(self, names: Sequence[str]) -> dict[str, bool]:
        """Return the columns of CSV to read, True for JSON; raise ValueError for a missing or duplicate column."""
        ...

    def row(self, number: int, value: dict[str, Any], size: int) -> InputRow:
        """Return the row of an object; an object of another kind is a row with a fault.

        Args:
            number: of the row in messages.
            value: the object.
            size: bytes of the object in its file.
        """
        ...


SortedParts = tuple[Contents, np.ndarray | None]
"""Parts of consecutive rows, and which of these rows is in each place of them; None if they are in order."""


class ScoreTarget(Protocol):
    """A format of scores. Its output is a function of the rows alone.

    Attributes:
        several: whether a row can have several completions.
    """

    several: bool

    def part(self, rows: list[OutputRow]) -> bytes:
        """Return a part of the output, complete in itself."""
        ...

    def join(self, parts: Iterable[SortedParts], file: BinaryIO) -> None:
        """Write the whole output.

        Args:
            parts: all parts, those of a sort window together, of which a few are in memory at a time.
            file: the output.
        """
        ...


IdKinds = dict[str, int]
"""Kind of ids in a file ("string", "whole number", ...) -> number of the first row that has it."""


def require_one_kind(ids: IdKinds, format: str) -> None:
    """Raise ValueError for ids that one column of a format cannot hold."""
    for kind in ("whole number beyond 64 bits", "string that UTF-8 cannot hold"):
        if kind in ids:
            place = f"id of row or line {ids[kind]}"
            raise ValueError(f"{place}: a {kind}, which {format} has no column for; write .jsonl")
    if len(ids) > 1:
        places = " and ".join(f"a {kind} in row or line {number}" for kind, number in ids.items())
        raise ValueError(f"ids: {places}, but a {format} column holds one kind; write .jsonl")
