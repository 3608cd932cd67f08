"""Frozen dataclasses as JSON and back, with strict fields, types and sizes."""

import dataclasses
import hashlib
import json
import math
import types
import typing
from typing import Any, TypeVar

from ir_passes.files.strict_json import parse_json

MAX_CHARACTERS = 8 << 20
MAX_ITEMS = 100_000
MAX_STRING_LENGTH = 100_000
CHECKSUM = "sha256"
"""Last member: hash of the record, against damage, not forgery."""

T = TypeVar("T")


class RecordError(ValueError):
    """A text is not the expected record."""


def to_json(record: Any, indent: int | None = 1, checksum: bool = False) -> str:
    """Return a dataclass instance as JSON with fields in order."""
    fields = dataclasses.asdict(record) | ({CHECKSUM: _digest(record)} if checksum else {})
    return json.dumps(fields, indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def from_json(cls: type[T], text: str | bytes, checksum: bool = False, **expected: Any) -> T:
    """Read a record of a class.

    Args:
        cls: dataclass with fields of int, float, bool, str, dataclasses, `tuple[X, ...]` or `X | None`; may raise
            RecordError.
        expected: values of fields, checked before other faults.

    Raises:
        RecordError: not JSON, too large, or a missing, unknown or wrong field.
    """
    if len(text) > MAX_CHARACTERS:
        raise RecordError(f"{cls.__name__}: expected at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        value = parse_json(text)
    except ValueError as error:
        raise RecordError(f"{cls.__name__}: not JSON: {error}") from error
    for name, wanted in expected.items():
        if isinstance(value, dict) and name in value and value[name] != wanted:
            raise RecordError(f"{cls.__name__}.{name}: expected {wanted!r}, got {_shown(value[name])}")
    digest = value.pop(CHECKSUM, None) if checksum and isinstance(value, dict) else None
    record = _read(cls, value, cls.__name__)
    if checksum and digest != _digest(record):
        raise RecordError(
            f"{cls.__name__}.{CHECKSUM}: expected {_digest(record)}, got {_shown(digest)}: it was damaged or edited"
        )
    return record


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, where)
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise RecordError(f"{where}: expected a list of at most {MAX_ITEMS} items, got {_shown(value)}")
        (item, _) = typing.get_args(kind)
        return tuple(_read(item, entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if origin is types.UnionType:
        (inner,) = (option for option in typing.get_args(kind) if option is not type(None))
        return None if value is None else _read(inner, value, where)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise RecordError(f"{where}: expected {kind.__name__}, got {_shown(value)}")
    if kind is str and len(value) > MAX_STRING_LENGTH:
        raise RecordError(f"{where}: expected at most {MAX_STRING_LENGTH} characters, got {len(value)}")
    if kind is int and not -(1 << 63) <= value < 1 << 63:
        raise RecordError(f"{where}: expected a number of 64 bits, got {_shown(value)}")
    return value


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise RecordError(f"{where}: expected an object, got {_shown(value)}")
    kinds = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    faults = [f"{name} is missing" for name in names if name not in value]
    faults += [f"{_shown(name)} is unknown" for name in value if name not in names]
    if faults:
        raise RecordError(f"{where}: {'; '.join(faults)}; expected the fields {', '.join(names)}")
    return kind(**{name: _read(kinds[name], value[name], f"{where}.{name}") for name in names})


def _digest(record: Any) -> str:
    return hashlib.sha256(to_json(record, indent=None).encode("utf-8", "surrogatepass")).hexdigest()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
