"""Wire format of commands and decisions: JSON in numbered parts with checksums.

No pickle: messages hold None, bool, int, float, str, list, tuple, frozenset, dict, int32 arrays of one dimension, and
known data classes; shared objects are sent by number.

`KeyValues` is JAX's coordination service in process 0: 4 KB take a tenth of a device broadcast's time, and a waiting
process keeps no device busy. Only JAX's internal client has this store.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.multiprocess.environment import Disagreement
from ir_passes.jaxpr.jax_private import coordination

PART_BYTES = 1 << 20
"""Bytes of a part, far below gRPC's message limit."""
_BLOCK = 256
"""Messages that are deleted together."""


class Message(NamedTuple):
    """A command or decision; `history` is the digest of earlier steps."""

    kind: str
    arguments: dict[str, Any]
    history: int


class Messages:
    """Messages of a run, in order.

    Args:
        store: `set`, `get` (waits for a value) and `delete` of `KeyValues`.
        classes: by name.

    Attributes:
        count: messages sent or received.
    """

    def __init__(self, store: Any, classes: Sequence[type] = ()):
        self._store, self.count = store, 0
        self._deleted = 0
        self.classes = {dataclass.__name__: dataclass for dataclass in classes}

    def send(self, message: Message, numbers: Mapping[Any, int] | None = None) -> None:
        """Send a message, with numbers of shared objects."""
        for part, data in enumerate(to_parts(self.count, message, {} if numbers is None else numbers)):
            self._store.set(_key(self.count, part), data)
        self.count += 1

    def receive(self, things: Mapping[int, Any]) -> Message:
        """Wait for the next message; `things` are the shared objects.

        Raises:
            Disagreement: a damaged message, or another number.
        """
        body, part, parts = b"", 0, 1
        while part < parts:
            piece, parts = from_part(self.count, part, self._store.get(_key(self.count, part)))
            body, part = body + piece, part + 1
        kind, arguments, history = json.loads(body)
        self.count += 1
        return Message(
            kind, {name: _decoded(value, self.classes, things) for name, value in arguments.items()}, history
        )

    def forget(self, count: int) -> None:
        """Delete the first `count` messages in whole blocks."""
        while self._deleted < count // _BLOCK:
            self._store.delete(f"message/{self._deleted}")
            self._deleted += 1


def _key(number: int, part: int) -> str:
    return f"message/{number // _BLOCK}/{number}/{part}"


def to_parts(number: int, message: Message, numbers: Mapping[Any, int]) -> list[bytes]:
    """Encode a message; raises ValueError with the name of a wrong argument."""
    arguments = {name: _encoded(value, numbers, name) for name, value in message.arguments.items()}
    body = json.dumps([message.kind, arguments, message.history]).encode()
    pieces = [body[begin : begin + PART_BYTES] for begin in range(0, len(body), PART_BYTES)]
    heads = [f"{number} {part} {len(pieces)} " for part in range(len(pieces))]
    return [
        f"{head}{zlib.crc32(piece, zlib.crc32(head.encode())):08x}\n".encode() + piece
        for head, piece in zip(heads, pieces, strict=True)
    ]


def from_part(number: int, part: int, data: bytes) -> tuple[bytes, int]:
    """Return a part's content and the number of parts; raises Disagreement for damage."""
    first, _, piece = data.partition(b"\n")
    head, _, checksum = first.rpartition(b" ")
    computed = f"{zlib.crc32(piece, zlib.crc32(head + b' ')):08x}"
    if checksum != computed.encode():
        expected = checksum[:8].decode(errors="replace")
        raise Disagreement(
            f"message {number}, part {part}: checksum: expected {expected}, got {computed}; it was damaged"
        )
    found_number, found_part, parts = map(int, head.split())
    if found_number != number:
        raise Disagreement(f"message {number}: expected number {number}, got {found_number}; a message was lost")
    if found_part != part:
        raise Disagreement(f"message {number}: expected part {part}, got {found_part}")
    return piece, parts


def _encoded(value: Any, numbers: Mapping[Any, int], name: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encoded(item, numbers, name) for item in value]
    if isinstance(value, tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return {type(value).__name__: [_encoded(item, numbers, name) for item in items]}
    if isinstance(value, dict):
        return {"dict": [[_encoded(item, numbers, name) for item in pair] for pair in value.items()]}
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.int32:
        return {"int32": value.tolist()}
    if isinstance(value, np.ndarray):
        raise ValueError(f"{name}: an array of {value.dtype} {value.shape} cannot be sent to other processes")
    if (number := numbers.get(value)) is not None:
        return {"thing": number}
    if is_dataclass(value) and not isinstance(value, type):
        inner = [field.name for field in fields(value) if field.init]
        return {"class": [type(value).__name__, {key: _encoded(getattr(value, key), numbers, name) for key in inner}]}
    raise ValueError(
        f"{name}: a {type(value).__name__} of yours cannot be sent to other processes; load in one process"
    )


def _decoded(value: Any, classes: Mapping[str, type], things: Mapping[int, Any]) -> Any:
    if isinstance(value, list):
        return [_decoded(entry, classes, things) for entry in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "thing":
        return things[inner]
    if kind == "int32":
        return np.array(inner, np.int32)
    if kind == "class":
        name, field_values = inner
        return classes[name](**{field: _decoded(entry, classes, things) for field, entry in field_values.items()})
    items = [_decoded(entry, classes, things) for entry in inner]
    return {"tuple": tuple, "frozenset": frozenset, "dict": dict}[kind](items)


class KeyValues:
    """The store of `jax.distributed`'s processes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        state = coordination()
        if state.client is None:
            raise RuntimeError("the processes have not been brought together: call jax.distributed.initialize first")
        self._client = state.client
        self.address = str(state.coordinator_address)

    def set(self, name: str, value: bytes) -> None:
        self._client.key_value_set_bytes(f"{self._folder}/{name}", value, allow_overwrite=True)

    def get(self, name: str, seconds: float) -> bytes | None:
        """Wait up to `seconds` for a value, else None."""
        try:
            return self._client.blocking_key_value_get_bytes(f"{self._folder}/{name}", max(1, int(1000 * seconds)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None

    def list(self, folder: str) -> dict[str, bytes]:
        """Return values by the rest of the key, for keys in "folder/"."""
        entries = self._client.key_value_dir_get_bytes(f"{self._folder}/{folder}/")
        return {name.rsplit("/", 1)[-1]: value for name, value in entries}

    def delete(self, name: str) -> None:
        """Delete a value, and all with keys in "name/"."""
        self._client.key_value_delete(f"{self._folder}/{name}")
