"""File of a compiled step: START, JSON header, then description, certificate and executable.

The header has the lengths of these sections, and their sha256.
"""

import hashlib
import struct
from dataclasses import dataclass
from itertools import accumulate

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.stored.stored_step import Description
from ir_passes.files import record

MAX_HEADER_BYTES = 1 << 14
MAX_LABEL = 200
START = struct.Struct("<8sI32s")
"""Magic number, length and sha256 of the header."""
_MAGIC = b"hlmstep\x02"


@dataclass(frozen=True)
class Header:
    """Header of an entry.

    Attributes:
        key: hash of everything that makes the step; also the file name.
        label: step and model, for people.
        seconds: of compilation.
        lengths: of description, certificate and executable.
        sha256: of these, one after the other.
    """

    key: str
    label: str
    seconds: float
    lengths: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A stored compiled step."""

    label: str
    seconds: float
    description: Description
    certificate: Certificate
    program: bytes


def to_bytes(key: str, entry: Entry) -> bytes:
    sections = (
        record.to_json(entry.description, indent=None).encode(),
        record.to_json(entry.certificate, indent=None, checksum=True).encode(),
        entry.program,
    )
    body, lengths = b"".join(sections), tuple(map(len, sections))
    described = Header(key, entry.label[:MAX_LABEL], entry.seconds, lengths, hashlib.sha256(body).hexdigest())
    header = record.to_json(described, indent=None).encode()
    return b"".join((START.pack(_MAGIC, len(header), hashlib.sha256(header).digest()), header, body))


def from_bytes(key: str, content: bytes) -> Entry:
    """Read an entry; raises RecordError if it is damaged or has another key."""
    header, begin = read_header(content, key)
    body, ends = content[begin:], list(accumulate(header.lengths))
    if len(ends) != 3 or min(header.lengths) < 0 or ends[-1] != len(body):
        raise record.RecordError(f"expected sections of {header.lengths} bytes, found {len(body)} bytes")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise record.RecordError("it is damaged: the sha256 differs")
    description = record.from_json(Description, body[: ends[0]])
    certificate = Certificate.from_json(body[ends[0] : ends[1]])
    return Entry(header.label, header.seconds, description, certificate, body[ends[1] :])


def read_header(content: bytes, key: str) -> tuple[Header, int]:
    """Return the header and the position of its end; raises RecordError."""
    if len(content) < START.size:
        raise record.RecordError("it is cut off")
    magic, length, digest = START.unpack_from(content)
    if magic != _MAGIC:
        raise record.RecordError("it is no compiled step of this format")
    text = content[START.size : START.size + length]
    if length > MAX_HEADER_BYTES or len(text) < length or hashlib.sha256(text).digest() != digest:
        raise record.RecordError("its header is damaged")
    header = record.from_json(Header, text)
    if header.key != key:
        raise record.RecordError("it is the entry of another key")
    return header, START.size + length
