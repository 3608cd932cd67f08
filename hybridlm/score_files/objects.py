"""Objects of texts and token ids, from lines of JSON or rows of CSV."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridlm.files.json_lines import read_id
from hybridlm.score_files.rows import NO_FIELDS, InputRow, RowFields
from hybridlm.scoring.items import FORMS, MASK, form_of

COLUMNS = ("id", *FORMS, "completion", MASK)
"""Columns of a table with a meaning for all tasks."""
CHAT_FIELDS = ("tools", "chat_template_kwargs")
"""Further fields of objects with messages."""
TEXT_COLUMNS = ("id", "text", "prompt", "completion")
"""Columns with texts in CSV; the others hold JSON."""


def named_columns(names: Sequence[str], fields: RowFields = NO_FIELDS) -> list[str]:
    """Return the columns to read: some of `COLUMNS`, and the columns that the task names.

    Args:
        names: all columns of a table.
        fields: columns with the chosen ids and the interventions of each row.

    Raises:
        ValueError: a column is missing or duplicate.
    """
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


@dataclass(frozen=True)
class TextObjects:
    """Reader of objects with a text, token ids, a prompt, messages, or a request.

    Attributes:
        fields: names of the fields with chosen ids and interventions.
        request: fields of an object that is a request; None for texts.
        id_name: field of the ids.
    """

    fields: RowFields = NO_FIELDS
    request: tuple[str, ...] | None = None
    id_name = "id"

    def columns(self, names: Sequence[str]) -> dict[str, bool]:
        """Return the columns of CSV to read, True for JSON; see `named_columns`."""
        columns = named_columns(names, self.fields)
        chat = [name for name in CHAT_FIELDS if name in names and "messages" in columns]
        return {name: name not in TEXT_COLUMNS for name in (*columns, *chat)}

    def row(self, number: int, value: dict[str, Any], size: int) -> InputRow:
        """Return the row of an object, with a fault for a wrong object."""
        id = None
        try:
            id = read_id(value)
            for name, kind in (
                (self.fields.chosen, "token ids, a list"),
                (self.fields.interventions, "interventions, a list of objects"),
            ):
                if name is not None and name not in value:
                    raise ValueError(f"{name}: expected {kind} or null; found no field")
            key, item = self._item(value)
        except ValueError as error:
            return InputRow(number, id, "", None, size, str(error))
        chosen, interventions = (None if name is None else value.get(name) for name in self.fields)
        return InputRow(number, id, key, item, size, None, chosen, interventions)

    def _item(self, value: dict[str, Any]) -> tuple[str, Any]:
        if self.request is not None:
            return "request", {name: value[name] for name in self.request if name in value}
        form = form_of(value)
        if form in ("prompt", "messages"):
            names = (*FORMS, "completion", *CHAT_FIELDS)
            return form, {name: value[name] for name in names if value.get(name) is not None}
        kind, name = (str, "a string") if form == "text" else (list, "a list of token ids")
        if not isinstance(value[form], kind):
            raise ValueError(f"{form}: expected {name}, got {type(value[form]).__name__}")
        return form, value[form]
