"""Wire format of commands and decisions: JSON in numbered parts, each with a checksum.

Nothing is pickled. Messages may hold None, bool, int, float, str, list, tuple, frozenset, dict, arrays of int32 in one
dimension, and data classes that the receiver names; objects that both sides have are sent as their number.

`KeyValues` is JAX's coordination service. The service runs in process 0, over the connections that
`jax.distributed.initialize` has made. A record of 4 KB takes a tenth of the time of a broadcast by the devices, and a
process that waits for one keeps no device busy, however long process 0 is idle. `jax.distributed` itself offers no such
store, only JAX's own client has it.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hybridlm.multiprocess.environment import Disagreement
from ir_passes.jaxpr.jax_private import coordination

PART_BYTES = 1 << 20
"""Maximum bytes of a part, far below gRPC's limit for a message."""
_BLOCK = 256
"""Number of messages that are deleted from the store together."""


class Message(NamedTuple):
    """A command or a decision.

    Attributes:
        kind: name of the command or decision.
        arguments: arguments by name.
        history: digest of all steps that the sender had dispatched before.
    """

    kind: str
    arguments: dict[str, Any]
    history: int


class Store(Protocol):
    """A key-value store that the processes share; see `KeyValues`."""

    def set(self, name: str, value: bytes) -> None:
        """Set the value of a new name."""
        ...

    def get(self, name: str) -> bytes:
        """Return the value of a name, waiting until it has one."""
        ...

    def delete(self, name: str) -> None:
        """Delete a name and its value."""
        ...


class Messages:
    """The messages of a run, in their order.

    Args:
        store: shared store with a `get` that waits for a value.
        classes: data classes that messages may have, by name.

    Attributes:
        count: messages sent or received so far.
    """

    def __init__(self, store: Store, classes: Sequence[type] = ()):
        self._store, self.count = store, 0
        self._deleted = 0
        self.classes = {dataclass.__name__: dataclass for dataclass in classes}

    def send(self, message: Message, numbers: Mapping[Any, int] | None = None) -> None:
        """Send a message; `numbers` has the objects that it may refer to, with their numbers."""
        for part, data in enumerate(to_parts(self.count, message, {} if numbers is None else numbers)):
            self._store.set(_key(self.count, part), data)
        self.count += 1

    def receive(self, things: Mapping[int, Any]) -> Message:
        """Wait for the next message; `things` has the objects that it may refer to.

        Raises:
            Disagreement: the message is damaged or has another number.
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
        """Delete messages that every process has received: those before the first `count`, in whole blocks."""
        while self._deleted < count // _BLOCK:
            self._store.delete(f"message/{self._deleted}")
            self._deleted += 1


def _key(number: int, part: int) -> str:
    return f"message/{number // _BLOCK}/{number}/{part}"


def to_parts(number: int, message: Message, numbers: Mapping[Any, int]) -> list[bytes]:
    """Encode a message.

    Raises:
        ValueError: an argument cannot be sent; the message names it.
    """
    arguments = {name: _encoded(value, numbers, name) for name, value in message.arguments.items()}
    body = json.dumps([message.kind, arguments, message.history]).encode()
    pieces = [body[begin : begin + PART_BYTES] for begin in range(0, len(body), PART_BYTES)]
    heads = [f"{number} {part} {len(pieces)} " for part in range(len(pieces))]
    return [
        f"{head}{zlib.crc32(piece, zlib.crc32(head.encode())):08x}\n".encode() + piece
        for head, piece in zip(heads, pieces, strict=True)
    ]


def from_part(number: int, part: int, data: bytes) -> tuple[bytes, int]:
    """Return the content of a part, and the number of parts.

    Raises:
        Disagreement: the part is damaged, or has other numbers.
    """
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
    """The store of the processes that `jax.distributed` has connected.

    Attributes:
        address: host and port of the service, in process 0.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        state = coordination()
        if state.client is None:
            raise RuntimeError("the processes have not been brought together: call jax.distributed.initialize first")
        self._client = state.client
        self.address = str(state.coordinator_address)

    def set(self, name: str, value: bytes) -> None:
        """Set a value, replacing an earlier one."""
        self._client.key_value_set_bytes(f"{self._folder}/{name}", value, allow_overwrite=True)

    def get(self, name: str, seconds: float) -> bytes | None:
        """Wait up to `seconds` for a value; None after that time."""
        try:
            return self._client.blocking_key_value_get_bytes(f"{self._folder}/{name}", max(1, int(1000 * seconds)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None

    def list(self, folder: str) -> dict[str, bytes]:
        """Return all values with keys in "folder/", by the rest of the key."""
        entries = self._client.key_value_dir_get_bytes(f"{self._folder}/{folder}/")
        return {name.rsplit("/", 1)[-1]: value for name, value in entries}

    def delete(self, name: str) -> None:
        """Delete a value, and all values with a key that begins with "name/"."""
        self._client.key_value_delete(f"{self._folder}/{name}")
