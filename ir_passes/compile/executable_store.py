"""Compiled steps in a directory, by a key of everything that they are made of: a warm start compiles nothing.

An entry is one file: a line of fixed form, a header in JSON, and three sections: description, certificate, executable.
An executable is machine code, so an entry is loaded only from a file and a folder that belong to this user and that
nobody else may write. Whatever is damaged, cut off or another's is as good as none, with one line in the log. The
directory has a size; what was not used for the longest goes first.
"""

import errno
import hashlib
import logging
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import jax

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.stored_step import Description, NotStorable
from ir_passes.jaxpr import record

_log = logging.getLogger("hybridlm")

DEFAULT_MAX_BYTES = 4 << 30
MAX_ENTRY_BYTES = 2 << 30
MAX_HEADER_BYTES = 1 << 14
MAX_ENTRIES = 100_000
STALE_SECONDS = 24 * 3600.0
"""Age from which a file that was never finished is taken for one of a process that has ended."""
SUFFIX, PART = ".step", ".part"
_START = struct.Struct("<8sI32s")
"""Magic number, length of the header, its sha256."""
_MAGIC = b"hlmstep\x01"
UNUSABLE = (OSError, ValueError, jax.errors.JaxRuntimeError)
"""Raised by an entry that is not one: record and description errors are ValueErrors."""


class EntryError(ValueError):
    """A file is no entry, or not one to be trusted; says why."""


@dataclass(frozen=True)
class Section:
    """Length and sha256 of a part of an entry."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Header:
    """What an entry holds.

    Attributes:
        key: of what it is made of; the name of its file.
        label: of the step and its model, for people.
        seconds: that making it took.
    """

    key: str
    label: str
    seconds: float
    description: Section
    certificate: Section
    program: Section


@dataclass(frozen=True)
class Entry:
    """A compiled step as it is kept."""

    label: str
    seconds: float
    description: Description
    certificate: Certificate
    program: bytes


@dataclass(frozen=True)
class Listed:
    """An entry as a list shows it.

    Attributes:
        label: None of a file that is no entry.
        bytes: of the file.
        used: when it was last written or loaded, in seconds since the epoch.
    """

    name: str
    label: str | None
    seconds: float
    bytes: int
    used: float


class ExecutableStore:
    """A directory of compiled steps, which any number of processes may read and write.

    Args:
        directory: made, for this user alone, when the first step is kept.
        max_bytes: of all entries together.
    """

    def __init__(self, directory: Path, max_bytes: int = DEFAULT_MAX_BYTES):
        self.directory, self.max_bytes = directory, max_bytes
        self._refused = False

    def find(self, key: str) -> Entry | None:
        """The entry of a key; None where there is none to be trusted, and a line in the log says so."""
        try:
            with self._opened() as folder:
                return _read(folder, key)
        except FileNotFoundError:
            return None
        except UNUSABLE as error:
            self._refuse(key, error)
            return None

    def keep(self, key: str, entry: Entry) -> bool:
        """Write an entry, all of it or nothing, and forget the oldest where there are too many bytes.

        Returns:
            Whether it was kept.
        """
        try:
            content = to_bytes(key, entry)
            if len(content) > min(self.max_bytes, MAX_ENTRY_BYTES):
                _log.info("%s is not kept: it has %d bytes", entry.label, len(content))
                return False
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            self.directory.mkdir(mode=0o700, exist_ok=True)
            with self._opened():
                self._write(key + SUFFIX, content)
                self.forget(self.max_bytes, but=key + SUFFIX)
        except UNUSABLE as error:
            self._refuse(key, error)
            return False
        return True

    def damaged(self, key: str, error: Exception) -> None:
        """Say that an entry of the right content could not be used."""
        self._refuse(key, error)

    def entries(self) -> list[Listed]:
        """All files of the store, the one used last first.

        Raises:
            EntryError: the directory may be another's.
        """
        found: list[Listed] = []
        with suppress(FileNotFoundError), self._opened() as folder:
            for name, status in _files(folder):
                try:
                    with open(_open(folder, name), "rb") as file:
                        header = _header(file.read(_START.size + MAX_HEADER_BYTES), name.removesuffix(SUFFIX))[0]
                    label, seconds = header.label, header.seconds
                except UNUSABLE:
                    label, seconds = None, 0.0
                found.append(Listed(name, label, seconds, status.st_size, status.st_mtime))
        return sorted(found, key=lambda one: (-one.used, one.name))

    def forget(self, max_bytes: int = 0, but: str | None = None) -> tuple[int, int]:
        """Delete those that were not used for the longest, until at most so many bytes are left.

        Args:
            max_bytes: of all that stay.
            but: stays.

        Returns:
            How many were deleted, and their bytes.

        Raises:
            EntryError: the directory may be another's.
        """
        count = size = 0
        with suppress(FileNotFoundError), self._opened() as folder:
            files = sorted(_files(folder), key=lambda one: (one[1].st_mtime, one[0]))
            total = sum(status.st_size for _, status in files)
            for name, status in files:
                if total <= max_bytes:
                    break
                if name != but:
                    with suppress(FileNotFoundError):  # another process was faster
                        os.unlink(name, dir_fd=folder)
                        count, size = count + 1, size + status.st_size
                    total -= status.st_size
        return count, size

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The directory, if nobody else may write it."""
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _trusted(os.fstat(folder), "the folder")
            yield folder
        finally:
            os.close(folder)

    def _write(self, name: str, content: bytes) -> None:
        handle, part = tempfile.mkstemp(prefix=name[:16], suffix=PART, dir=self.directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.directory / name)
        except BaseException:
            os.unlink(part)
            raise

    def _refuse(self, key: str, error: Exception) -> None:
        """Say once for a folder, and for each file, why it is not used."""
        whole = isinstance(error, EntryError) and "the folder" in str(error)
        if not (whole and self._refused):
            name = self.directory if whole else self.directory / (key + SUFFIX)
            _log.warning("%s is not used: %s; steps are compiled", name, str(error) or type(error).__name__)
        self._refused = self._refused or whole


def to_bytes(key: str, entry: Entry) -> bytes:
    """An entry as the bytes of its file."""
    sections = (
        record.to_json(entry.description, indent=None).encode(),
        record.to_json(entry.certificate, indent=None).encode(),
        entry.program,
    )
    described = (Section(len(one), hashlib.sha256(one).hexdigest()) for one in sections)
    header = record.to_json(Header(key, entry.label[:200], entry.seconds, *described), indent=None).encode()
    return b"".join((_START.pack(_MAGIC, len(header), hashlib.sha256(header).digest()), header, *sections))


def from_bytes(key: str, content: bytes) -> Entry:
    """The entry of a key that a file holds.

    Raises:
        EntryError, RecordError: it holds something else.
    """
    header, at = _header(content, key)
    parts: list[bytes] = []
    for name in ("description", "certificate", "program"):
        section: Section = getattr(header, name)
        if section.bytes < 0 or section.bytes > len(content) - at:
            raise EntryError(f"its {name} is cut off")
        part = content[at : at + section.bytes]
        if hashlib.sha256(part).hexdigest() != section.sha256:
            raise EntryError(f"its {name} is damaged: the sha256 differs")
        parts.append(part)
        at += section.bytes
    if at != len(content):
        raise EntryError(f"expected {at} bytes, found {len(content)}")
    description = record.from_json(Description, parts[0])
    return Entry(header.label, header.seconds, description, Certificate.from_json(parts[1]), parts[2])


def _header(content: bytes, key: str) -> tuple[Header, int]:
    """The header of an entry, and where it ends."""
    if len(content) < _START.size:
        raise EntryError("it is cut off")
    magic, length, digest = _START.unpack_from(content)
    if magic != _MAGIC:
        raise EntryError("it is no compiled step of this format")
    text = content[_START.size : _START.size + length]
    if length > MAX_HEADER_BYTES or len(text) < length or hashlib.sha256(text).digest() != digest:
        raise EntryError("its header is damaged")
    header = record.from_json(Header, text)
    if header.key != key:
        raise EntryError("it is the entry of another key")
    return header, _START.size + length


def _read(folder: int, key: str) -> Entry:
    with open(_open(folder, key + SUFFIX), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_ENTRY_BYTES:
            raise EntryError(f"it has {status.st_size} bytes, more than {MAX_ENTRY_BYTES}")
        content = file.read(MAX_ENTRY_BYTES + 1)
        entry = from_bytes(key, content)
        with suppress(OSError):  # a disk that is only read has no order of use
            os.utime(file.fileno())
    return entry


def _open(folder: int, name: str) -> int:
    """A file of the store, if it is this user's alone; a link is none."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise EntryError("it is a link") from error
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise EntryError("it is no regular file")
        _trusted(status, "it")
    except BaseException:
        os.close(handle)
        raise
    return handle


def _trusted(status: os.stat_result, what: str) -> None:
    """Raises EntryError where somebody else could have written it."""
    if status.st_uid != os.geteuid():
        raise EntryError(f"{what} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EntryError(f"{what} may be written by others (mode {stat.S_IMODE(status.st_mode):o})")


def _files(folder: int) -> list[tuple[str, os.stat_result]]:
    """Entries of the directory; files that a process did not finish are deleted."""
    found: list[tuple[str, os.stat_result]] = []
    with os.scandir(folder) as listed:
        for number, one in enumerate(listed):
            if number >= MAX_ENTRIES:
                raise EntryError(f"the folder has more than {MAX_ENTRIES} files")
            with suppress(FileNotFoundError):
                status = one.stat(follow_symlinks=False)
                if one.name.endswith(PART) and status.st_mtime < time.time() - STALE_SECONDS:
                    os.unlink(one.name, dir_fd=folder)
                elif one.name.endswith(SUFFIX):
                    found.append((one.name, status))
    return found


__all__ = ["DEFAULT_MAX_BYTES", "Entry", "EntryError", "ExecutableStore", "Listed", "NotStorable"]
