"""The protobuf wire format, read without protobuf: a schema of field numbers in, plain dictionaries out.

Every field of the schema is present in what comes out: proto3 leaves a field out whose value is zero, so an absent
number is 0, an absent string empty, an absent message None. Other fields are skipped, or kept verbatim where the schema
asks for it. Source: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["int", "bool", "str", "bytes", "message", "skip"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10


class WireError(ValueError):
    """The bytes are no message of the schema: cut off, or of another wire type."""


@dataclass(frozen=True)
class Field:
    """One field of a message.

    Attributes:
        name: its key in the decoded dictionary.
        kind: "int" is int32, int64, uint64 or an enum (two's complement); "skip" drops the field.
        repeated: a tuple of values, packed or not.
        message: of a "message"; None: the message that has this field.
    """

    name: str
    kind: Kind
    repeated: bool = False
    message: "WireMessage | None" = None


@dataclass(frozen=True)
class WireMessage:
    """A message: its name, for errors, and its fields by number.

    Attributes:
        rest: the key under which fields that are not in the schema are kept, as one byte string, or None.
    """

    name: str
    fields: Mapping[int, Field]
    rest: str | None = None
    blank: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        zero: dict[Kind, Any] = {"int": 0, "bool": False, "str": "", "bytes": b"", "message": None}
        blank: dict[str, Any] = {
            known.name: () if known.repeated else zero[known.kind]
            for known in self.fields.values()
            if known.kind != "skip"
        }
        if self.rest is not None:
            blank[self.rest] = b""
        object.__setattr__(self, "blank", blank)


def decode(data: bytes, message: WireMessage) -> dict[str, Any]:
    """Read one message.

    Args:
        data: its bytes, the whole of them.
        message: its schema.

    Returns:
        One entry per field of the schema.

    Raises:
        WireError: the message is cut off or a field has another wire type than its kind; says which and where.
    """
    return _decode(data, 0, len(data), message)


def _decode(data: bytes, at: int, end: int, message: WireMessage) -> dict[str, Any]:
    """Decode bytes `at` to `end` of a message into a dictionary."""
    out = message.blank.copy()
    lists: dict[str, list[Any]] = {}
    rest: list[bytes] = []
    fields = message.fields
    while at < end:
        start = at
        tag = data[at]
        at += 1
        if tag >= 0x80:
            # Numbers of fields from 16 on have two bytes.
            if at < end and (high := data[at]) < 0x80:
                tag += (high - 1) << 7
                at += 1
            else:
                tag, at = _varint(data, start, end, message.name)
        known = fields.get(tag >> 3)
        wire = tag & 7
        if known is None or known.kind == "skip":
            at = _skip(data, at, end, tag, message.name)
            if known is None and message.rest is not None:
                rest.append(data[start:at])
            continue
        if wire == _BYTES:
            # Nearly all numbers have one byte, and calls cost more than all else here.
            if at < end and (size := data[at]) < 0x80:
                at += 1
            else:
                size, at = _varint(data, at, end, message.name)
            stop = at + size
            if stop > end:
                raise WireError(f"{message.name}.{known.name}: {size} bytes announced at {at}, only {end - at} left")
            kind = known.kind
            if kind == "message":
                value: Any = _decode(data, at, stop, known.message or message)
            elif kind == "str":
                value = data[at:stop].decode("utf-8", "replace")
            elif kind == "bytes":
                value = data[at:stop]
            elif known.repeated:
                lists.setdefault(known.name, []).extend(_packed(data, at, stop, message.name))
                at = stop
                continue
            else:
                raise WireError(f"{message.name}.{known.name}: expected a varint at {start}, got {size} bytes")
            at = stop
        elif wire == _VARINT and known.kind in ("int", "bool"):
            if at < end and (value := data[at]) < 0x80:
                at += 1
            else:
                value, at = _varint(data, at, end, message.name)
                value -= value >> 63 << 64
            value = bool(value) if known.kind == "bool" else value
        else:
            raise WireError(f"{message.name}.{known.name}: expected {known.kind} at {start}, got wire type {wire}")
        if known.repeated:
            lists.setdefault(known.name, []).append(value)
        else:
            out[known.name] = value
    for name, values in lists.items():
        out[name] = tuple(values)
    if message.rest is not None:
        out[message.rest] = b"".join(rest)
    return out


def _varint(data: bytes, at: int, end: int, name: str) -> tuple[int, int]:
    if at < end and (value := data[at]) < 0x80:
        return value, at + 1
    value = shift = 0
    stop = at
    for byte in data[at : min(end, at + _MAX_VARINT)]:
        stop += 1
        if byte < 0x80:
            return (value | byte << shift) & 0xFFFF_FFFF_FFFF_FFFF, stop
        value |= (byte & 0x7F) << shift
        shift += 7
    raise WireError(f"{name}: the number at byte {at} does not end before byte {min(end, at + _MAX_VARINT)}")


def _packed(data: bytes, at: int, end: int, name: str) -> Iterable[int]:
    if (part := data[at:end]).isascii():
        return part  # every number has one byte
    values: list[int] = []
    while at < end:
        value, at = _varint(data, at, end, name)
        values.append(value - (value >> 63 << 64))
    return values


def _skip(data: bytes, at: int, end: int, tag: int, name: str) -> int:
    wire = tag & 7
    if wire == _VARINT:
        return _varint(data, at, end, name)[1]
    if wire == _BYTES:
        size, at = _varint(data, at, end, name)
    elif wire in (_FIXED32, _FIXED64):
        size = 4 if wire == _FIXED32 else 8
    else:
        raise WireError(f"{name}: field {tag >> 3} at byte {at} has wire type {wire}, which proto3 does not use")
    if at + size > end:
        raise WireError(f"{name}: field {tag >> 3} announces {size} bytes at {at}, only {end - at} are left")
    return at + size
