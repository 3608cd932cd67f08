"""Rows of texts and of scores, and the protocols of files that hold them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np

from hybridlm.files.json_lines import Id
from hybridlm.requests.results import Score


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
    def several(self) -> bool:
        """Whether the row has a list of completions."""
        given = self.item.get("completion") if isinstance(self.item, dict) else None
        return isinstance(given, list) and not all(isinstance(one, int) for one in given)


Columns = Mapping[str, Literal["floats", "ids", "flags", "number", "text", "object"]]
"""Names of the fields of a file that holds no scores, and what each has: lists of numbers, of ids or of booleans, one
number, one text, or any JSON."""


class OutputRow(NamedTuple):
    """A row of the output: its score, the scores of its list of completions, its values, or its error.

    Attributes:
        values: field -> value, in a file that holds no scores; lists are arrays, and a number that is none is null.
        tokens: number of tokens that the values are of.
    """

    id: Id
    score: Score | None
    error: str | None
    completions: tuple[Score, ...] = ()
    values: Mapping[str, Any] | None = None
    tokens: int = 0


class TextSource(Protocol):
    """A file of texts.

    Attributes:
        unit: the word for a row in messages, "line" or "row".
    """

    unit: str

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """Yield the rows from a mark on, each with the mark behind it, in bounded memory."""
        ...


SortedParts = tuple[Sequence[bytes], np.ndarray | None]
"""Parts of consecutive rows, and which of these rows is in each place of them; None if they are in order."""


class ScoreTarget(Protocol):
    """A format of scores. Its output is a function of the rows alone."""

    def part(self, rows: list[OutputRow]) -> bytes:
        """Return a part of the output, complete in itself."""
        ...

    def join(self, parts: Iterable[SortedParts], file: BinaryIO, saved: int) -> None:
        """Write the whole output.

        Args:
            parts: all parts, those of a sort window together, of which a few are in memory at a time.
            file: the output.
            saved: tokens that were not computed again because rows begin alike, for formats that have a place for it.
        """
        ...


IdKinds = dict[str, int]
"""Kind of ids in a file ("string", "whole number", ...) -> number of the first row that has it."""
