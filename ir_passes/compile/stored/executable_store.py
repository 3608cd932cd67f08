"""Compiled steps in a directory, by a key of everything that they are made of: a warm start compiles nothing.

An executable is machine code, so an entry is loaded only from a file and a folder that belong to this user and that
nobody else may write. Whatever is damaged, cut off or another's is as good as none, with one line in the log. The
directory has a size; what was not used for the longest goes first.
"""

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import jax

from ir_passes.compile.stored.entry_file import (
    MAX_HEADER_BYTES,
    START,
    Entry,
    EntryError,
    from_bytes,
    open_trusted,
    read_header,
    require_trusted,
    to_bytes,
)
from ir_passes.files.atomic import whole_file

_log = logging.getLogger("hybridlm")

DEFAULT_MAX_BYTES = 4 << 30
MAX_ENTRY_BYTES = 2 << 30
MAX_ENTRIES = 100_000
STALE_SECONDS = 24 * 3600.0
"""Age from which a file that was never finished is taken for one of a process that has ended."""
SUFFIX, PART = ".step", ".part"
UNUSABLE = (OSError, ValueError, jax.errors.JaxRuntimeError)
"""Raised by an entry that is not one: record and description errors are ValueErrors."""


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
                    with open(open_trusted(folder, name), "rb") as file:
                        header = read_header(file.read(START.size + MAX_HEADER_BYTES), name.removesuffix(SUFFIX))[0]
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
            require_trusted(os.fstat(folder), "the folder")
            yield folder
        finally:
            os.close(folder)

    def _write(self, name: str, content: bytes) -> None:
        partial = self.directory / f"{name[:16]}{secrets.token_hex(8)}{PART}"
        with whole_file(self.directory / name, partial) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)

    def _refuse(self, key: str, error: Exception) -> None:
        """Say once for a folder, and for each file, why it is not used."""
        whole = isinstance(error, EntryError) and "the folder" in str(error)
        if not (whole and self._refused):
            name = self.directory if whole else self.directory / (key + SUFFIX)
            _log.warning("%s is not used: %s; steps are compiled", name, str(error) or type(error).__name__)
        self._refused = self._refused or whole


def _read(folder: int, key: str) -> Entry:
    with open(open_trusted(folder, key + SUFFIX), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_ENTRY_BYTES:
            raise EntryError(f"it has {status.st_size} bytes, more than {MAX_ENTRY_BYTES}")
        content = file.read(MAX_ENTRY_BYTES + 1)
        entry = from_bytes(key, content)
        with suppress(OSError):  # a disk that is only read has no order of use
            os.utime(file.fileno())
    return entry


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
