"""Decoder of protobuf's wire format from a schema of field numbers (https://protobuf.dev/programming-guides/encoding).

Each schema field has an entry in the result: an absent number is 0, a string empty, a message None. Other fields are
skipped, or verbatim on request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["int", "bool", "str", "bytes", "message", "skip"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10


@dataclass(frozen=True)
class Field:
    """One field of a message.

    Attributes:
        name: key in the result.
        kind: "int" is int32, int64, uint64 or an enum (two's complement); "skip" drops the field.
        repeated: a tuple of values, packed or not.
        message: type of a "message"; None for the enclosing type.
    """

    name: str
    kind: Kind
    repeated: bool = False
    message: "WireMessage | None" = None


@dataclass(frozen=True)
class WireMessage:
    """A message type: name for errors, and fields by number.

    Attributes:
        rest: key of other fields as one byte string, or None.
    """

    name: str
    fields: Mapping[int, Field]
    rest: str | None = None
    blank: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        zero: dict[Kind, Any] = {"int": 0, "bool": False, "str": "", "bytes": b"", "message": None}
        blank: dict[str, Any] = {
            field.name: () if field.repeated else zero[field.kind]
            for field in self.fields.values()
            if field.kind != "skip"
        }
        if self.rest is not None:
            blank[self.rest] = b""
        object.__setattr__(self, "blank", blank)


def decode(data: bytes, message: WireMessage) -> dict[str, Any]:
    """Decode one message; raises ValueError with field and byte if it is malformed."""
    return _decode(data, 0, len(data), message)


def _decode(data: bytes, position: int, end: int, message: WireMessage) -> dict[str, Any]:
    out = message.blank.copy()
    lists: dict[str, list[Any]] = {}
    rest: list[bytes] = []
    fields = message.fields
    while position < end:
        start = position
        tag = data[position]
        position += 1
        if tag >= 0x80:
            # Field numbers from 16 on take two bytes.
            if position < end and (high := data[position]) < 0x80:
                tag += (high - 1) << 7
                position += 1
            else:
                tag, position = _varint(data, start, end, message.name)
        field = fields.get(tag >> 3)
        wire = tag & 7
        if field is None or field.kind == "skip":
            position = _skip(data, position, end, tag, message.name)
            if field is None and message.rest is not None:
                rest.append(data[start:position])
            continue
        if wire == _BYTES:
            # Nearly all sizes have one byte, and function calls dominate the time.
            if position < end and (size := data[position]) < 0x80:
                position += 1
            else:
                size, position = _varint(data, position, end, message.name)
            stop = position + size
            if stop > end:
                raise ValueError(
                    f"{message.name}.{field.name}: {size} bytes announced at {position}, only {end - position} left"
                )
            kind = field.kind
            if kind == "message":
                value: Any = _decode(data, position, stop, field.message or message)
            elif kind == "str":
                value = data[position:stop].decode("utf-8", "replace")
            elif kind == "bytes":
                value = data[position:stop]
            elif field.repeated:
                lists.setdefault(field.name, []).extend(_packed(data, position, stop, message.name))
                position = stop
                continue
            else:
                raise ValueError(f"{message.name}.{field.name}: expected a varint at {start}, got {size} bytes")
            position = stop
        elif wire == _VARINT and field.kind in ("int", "bool"):
            if position < end and (value := data[position]) < 0x80:
                position += 1
            else:
                value, position = _varint(data, position, end, message.name)
                value -= value >> 63 << 64
            value = bool(value) if field.kind == "bool" else value
        else:
            raise ValueError(f"{message.name}.{field.name}: expected {field.kind} at {start}, got wire type {wire}")
        if field.repeated:
            lists.setdefault(field.name, []).append(value)
        else:
            out[field.name] = value
    for name, values in lists.items():
        out[name] = tuple(values)
    if message.rest is not None:
        out[message.rest] = b"".join(rest)
    return out


def _varint(data: bytes, position: int, end: int, name: str) -> tuple[int, int]:
    if position < end and (value := data[position]) < 0x80:
        return value, position + 1
    value = shift = 0
    stop = position
    for byte in data[position : min(end, position + _MAX_VARINT)]:
        stop += 1
        if byte < 0x80:
            return (value | byte << shift) & 0xFFFF_FFFF_FFFF_FFFF, stop
        value |= (byte & 0x7F) << shift
        shift += 7
    raise ValueError(
        f"{name}: the number at byte {position} does not end before byte {min(end, position + _MAX_VARINT)}"
    )


def _packed(data: bytes, position: int, end: int, name: str) -> Iterable[int]:
    if (part := data[position:end]).isascii():
        return part  # each number has one byte
    values: list[int] = []
    while position < end:
        value, position = _varint(data, position, end, name)
        values.append(value - (value >> 63 << 64))
    return values


def _skip(data: bytes, position: int, end: int, tag: int, name: str) -> int:
    wire = tag & 7
    if wire == _VARINT:
        return _varint(data, position, end, name)[1]
    if wire == _BYTES:
        size, position = _varint(data, position, end, name)
    elif wire in (_FIXED32, _FIXED64):
        size = 4 if wire == _FIXED32 else 8
    else:
        raise ValueError(f"{name}: field {tag >> 3} at byte {position} has wire type {wire}, which proto3 does not use")
    if position + size > end:
        raise ValueError(
            f"{name}: field {tag >> 3} announces {size} bytes at {position}, only {end - position} are left"
        )
    return position + size
