"""Lines of texts, JSON or plain, read from any line on, and JSON lines of scores."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hybridlm.files.json_lines import dump, finite, parse_object, read_id, read_item, write_in_order
from hybridlm.requests.results import Score
from hybridlm.score_files.rows import NO_FIELDS, Columns, IdKinds, InputRow, Mark, OutputRow, RowFields, SortedParts
from hybridlm.scoring.distributions import DistributionSettings
from hybridlm.scoring.items import form_of

OBJECTS = {"prompt", "completion", "messages"}
"""Fields of rows that are more than one text."""
FIELDS = ("text", "token_ids", "prompt", "completion", "messages", "tools", "chat_template_kwargs")
BLOCK_BYTES = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextLines:
    """A file of texts, one per line; blank lines at its end do not count.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be read.
    """

    unit = "line"

    def __init__(self, path: Path):
        self._path = path
        with path.open("rb") as file:
            self._end = _content_end(file)

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """Yield every line from `start` on; a line that cannot be read is a row with a fault."""
        number, offset = start
        with self._path.open("rb") as file:
            file.seek(offset)
            while offset < self._end:
                line = file.readline()
                if not line:
                    raise ValueError(f"{self._path}: has become shorter while it was read, it ends at byte {offset}")
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
        if fields.interventions is not None and fields.interventions not in value:
            raise ValueError(
                f"{fields.interventions}: expected interventions, a list of objects or null; found no field"
            )
        if request is not None:
            key, item = "request", {name: value[name] for name in request if name in value}
        elif not value.keys() & OBJECTS:
            key, item = read_item(value, ("text",))
        else:
            key = form_of(value)
            item = {name: value[name] for name in FIELDS if value.get(name) is not None}
            if key not in OBJECTS:
                key, item = read_item(item, ("text",))
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
    """One line per row: id, token_ids, logprobs, sum_logprob, perplexity, and what was asked; or id and error.

    Args:
        ids, settings, columns: ignored; lines hold ids of all kinds, and whatever was asked.
    """

    def __init__(self, ids: IdKinds, settings: DistributionSettings, columns: Columns | None = None):
        del ids, settings, columns

    def part(self, rows: list[OutputRow]) -> bytes:
        return "".join(dump(_object(row)) + "\n" for row in rows).encode("ascii")

    def join(self, parts: Iterable[SortedParts], file: BinaryIO, saved: int) -> None:
        del saved  # a line is a row
        for contents, order in parts:
            if order is None:
                for one in contents:
                    file.write(one)
            else:
                write_in_order(contents, order, file)


def _object(row: OutputRow) -> dict[str, Any]:
    if row.values is not None:
        return {"id": row.id, **{name: _value(value) for name, value in row.values.items()}}
    if row.score is None:
        return {"id": row.id, "error": row.error}
    before = {"prompt_tokens": row.score.prefix_tokens} if row.score.prefix_tokens else {}
    if row.completions:
        return {"id": row.id, **before, "completions": [_scored(score) for score in row.completions]}
    return {"id": row.id, **before, **_scored(row.score)}


def _value(value: Any) -> Any:
    """Return a value of a row as JSON."""
    if isinstance(value, np.ndarray):
        return [finite(one) for one in value.tolist()] if value.dtype.kind == "f" else value.tolist()
    return finite(value) if isinstance(value, float) else value


def _scored(score: Score) -> dict[str, Any]:
    """Return the fields of a score."""
    values = _of_tokens(score)
    if score.ranks is not None:
        values["ranks"] = [rank or None for rank in score.ranks.tolist()]
    if score.entropy is not None:
        values["entropy"] = [finite(value) for value in score.entropy.tolist()]
    for name, part in (("top", score.top), ("chosen", score.chosen)):
        if part is not None:
            places = [part.at(token) for token in range(len(part))]
            values[f"{name}_token_ids"] = [ids.tolist() for ids, _, _ in places]
            values[f"{name}_logprobs"] = [list(map(finite, logprobs.tolist())) for _, logprobs, _ in places]
            if name == "chosen":
                values["chosen_ranks"] = [ranks.tolist() for _, _, ranks in places]
    return values


def _of_tokens(score: Score) -> dict[str, Any]:
    total = finite(score.sum_logprob)
    values: list[float] = score.logprobs.tolist()
    # The sum is finite if all values are: it has too few of them for a float64 to overflow.
    first = score.first_predicted
    logprobs = [*[None] * first, *values[first:]] if total is not None else [finite(value) for value in values]
    return {
        "token_ids": score.token_ids,
        "logprobs": logprobs,
        "sum_logprob": total,
        "perplexity": finite(score.perplexity),
    }
