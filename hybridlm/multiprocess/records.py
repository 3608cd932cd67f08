"""Wire format of operations: records of one size, each with a checksum.

Process 0 decides and broadcasts; the others repeat. Nothing is pickled: numbers and arrays of four types, so that a
damaged, truncated or reordered record is an error and never another operation.
"""

import struct
import zlib
from typing import Literal, NamedTuple, get_args

import numpy as np

Kind = Literal["run", "copy", "keep", "restore", "rows", "drop", "warm up", "end"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RECORD = 4096
"""Bytes of a record, enough for the operands of a decode step of 64 lanes."""

_HEADER = struct.Struct("<4sHHHHQII")
_MAGIC = b"hlm1"
_ROOM = RECORD - _HEADER.size
_DTYPES = tuple(map(np.dtype, ("int32", "uint32", "float32", "bool")))


class BroadcastError(RuntimeError):
    """A received record is damaged, or out of order."""


class Operation(NamedTuple):
    """One operation.

    Attributes:
        kind: kind of the operation.
        numbers: the rows, and the shape; each fits 64 bits.
        arrays: operands, in the order of the step.
    """

    kind: Kind
    numbers: tuple[int, ...] = ()
    arrays: tuple[np.ndarray, ...] = ()


def to_records(epoch: int, operation: Operation) -> bytes:
    """Encode an operation as whole records.

    Args:
        epoch: number of operations broadcast before.
        operation: its arrays are int32, uint32, float32 or bool.
    """
    body = np.array(operation.numbers, "<i8").tobytes()
    for array in operation.arrays:
        head = struct.pack("<BB", _DTYPES.index(array.dtype), array.ndim)
        body += head + np.array(array.shape, "<u4").tobytes() + np.ascontiguousarray(array).tobytes()
    pieces = [body[at : at + _ROOM] for at in range(0, len(body), _ROOM)] or [b""]
    kind, count = KINDS.index(operation.kind), len(operation.numbers)
    records = []
    for part, piece in enumerate(pieces):
        fields = (_MAGIC, kind, count, part, len(pieces), epoch, len(piece))
        rest = piece.ljust(_ROOM, b"\0")
        records.append(_HEADER.pack(*fields, _checksum(fields, rest)) + rest)
    return b"".join(records)


def from_records(data: bytes, epoch: int) -> Operation:
    """Decode the operation of whole records.

    Args:
        data: whole records.
        epoch: number of operations broadcast before.

    Raises:
        BroadcastError: a record is damaged or missing, or belongs to another epoch.
    """
    if not data or len(data) % RECORD:
        raise BroadcastError(f"operation {epoch}: expected whole records of {RECORD} B, got {len(data)} B")
    total, body, kind, count = len(data) // RECORD, b"", 0, 0
    for part in range(total):
        record = data[part * RECORD : (part + 1) * RECORD]
        *fields, checksum = _HEADER.unpack_from(record)
        rest = record[_HEADER.size :]
        found = _checksum(tuple(fields), rest)
        magic, kind, count, number, parts, found_epoch, used = fields
        if found != checksum or magic != _MAGIC:
            raise BroadcastError(
                f"operation {epoch}, record {part}: checksum: expected {checksum:08x}, got {found:08x}; it was damaged "
                "in transit"
            )
        if found_epoch != epoch:
            raise BroadcastError(
                f"operation {epoch}, record {part}: epoch: expected {epoch}, got {found_epoch}; a record was lost"
            )
        if (number, parts) != (part, total):
            raise BroadcastError(f"operation {epoch}: expected record {part} of {total}, got {number} of {parts}")
        body += rest[:used]
    return Operation(KINDS[kind], *_decoded(body, count))


def _checksum(fields: tuple, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(_HEADER.pack(*fields, 0)))


def _decoded(body: bytes, count: int) -> tuple[tuple[int, ...], tuple[np.ndarray, ...]]:
    numbers = tuple(np.frombuffer(body, "<i8", count).tolist())
    arrays, at = [], 8 * count
    while at < len(body):
        dtype, ndim = _DTYPES[body[at]], body[at + 1]
        shape = tuple(np.frombuffer(body, "<u4", ndim, at + 2).tolist())
        at += 2 + 4 * ndim
        size = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(body, dtype, size, at).reshape(shape))
        at += size * dtype.itemsize
    return numbers, tuple(arrays)
