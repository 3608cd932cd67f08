"""File of a compiled step: START, JSON header, then description, certificate and executable.

The header has the length and sha256 of each section.
"""

import hashlib
import struct
from dataclasses import dataclass

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.stored.stored_step import Description
from ir_passes.files import record

MAX_HEADER_BYTES = 1 << 14
MAX_LABEL = 200
START = struct.Struct("<8sI32s")
"""Magic number, length and sha256 of the header."""
_MAGIC = b"hlmstep\x01"


@dataclass(frozen=True)
class Section:
    """Length and sha256 of a section."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Header:
    """Header of an entry.

    Attributes:
        key: hash of everything that makes the step; also the file name.
        label: step and model, for people.
        seconds: of compilation.
    """

    key: str
    label: str
    seconds: float
    description: Section
    certificate: Section
    program: Section


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
    described = (Section(len(section), hashlib.sha256(section).hexdigest()) for section in sections)
    header = record.to_json(Header(key, entry.label[:MAX_LABEL], entry.seconds, *described), indent=None).encode()
    return b"".join((START.pack(_MAGIC, len(header), hashlib.sha256(header).digest()), header, *sections))


def from_bytes(key: str, content: bytes) -> Entry:
    """Read an entry; raises RecordError if it is damaged or has another key."""
    header, position = read_header(content, key)
    parts: list[bytes] = []
    for name in ("description", "certificate", "program"):
        section: Section = getattr(header, name)
        if section.bytes < 0 or section.bytes > len(content) - position:
            raise record.RecordError(f"its {name} is cut off")
        part = content[position : position + section.bytes]
        if hashlib.sha256(part).hexdigest() != section.sha256:
            raise record.RecordError(f"its {name} is damaged: the sha256 differs")
        parts.append(part)
        position += section.bytes
    if position != len(content):
        raise record.RecordError(f"expected {position} bytes, found {len(content)}")
    description = record.from_json(Description, parts[0])
    return Entry(header.label, header.seconds, description, Certificate.from_json(parts[1]), parts[2])


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
