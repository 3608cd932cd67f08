"""Directory of files by key, for results that are expensive to compute.

Several processes of one user may use it. Unreadable, too long, damaged or foreign content (`trust`) counts as absent.
"""

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, TypeVar

from ir_passes.files.atomic import PARTIAL, whole_file
from ir_passes.files.record import MAX_CHARACTERS, RecordError
from ir_passes.files.trust import UntrustedError, make_own_folder, open_own_folder, require_own

_log = logging.getLogger("hybridlm")
_warned: set[Path] = set()
"""Files and folders of earlier warnings."""

T = TypeVar("T")

MAX_FILES = 100_000
STALE_SECONDS = 24 * 3600.0
"""Age of incomplete files from ended processes."""


class StoredFile(NamedTuple):
    """A file of a store; `used` is its last use in seconds since 1970."""

    name: str
    bytes: int
    used: float


class FileStore:
    """A directory of files by key.

    Args:
        directory: created for this user alone, on the first write.
    """

    suffix: ClassVar[str] = ""

    def __init__(self, directory: Path):
        self.directory = directory

    def read_file(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a file; None if unreadable, too long or untrusted."""
        try:
            return self.require_file(name, max_bytes)
        except UntrustedError as error:
            self.warn(error)
            return None
        except (OSError, ValueError):
            return None

    def require_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a file, and mark it as used.

        Raises:
            OSError: it cannot be read.
            UntrustedError: another user could have written it.
            ValueError: above `max_bytes`.
        """
        with self._folder() as folder, self._opened(folder, name) as file:
            content = file.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise ValueError(f"it has {os.fstat(file.fileno()).st_size} bytes, more than {max_bytes}")
            with suppress(OSError):  # a read-only disk keeps no order of use
                os.utime(file.fileno())
        return content

    def read_record(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        content = self.read_file(name, MAX_CHARACTERS)
        try:
            return None if content is None else parse(content)
        except RecordError:
            return None

    def write_file(self, name: str, content: bytes) -> None:
        """Write a file atomically; raises OSError or UntrustedError."""
        make_own_folder(self.directory)
        with self._folder(), whole_file(self.directory / name) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)

    def warn(self, error: UntrustedError) -> None:
        """Log why files are not read, once per file or folder."""
        if error.path not in _warned:
            _warned.add(error.path)
            _log.warning("%s: kept files are not used, results are computed anew: %s", self.directory, error)

    def files(self) -> list[StoredFile]:
        """List all files, least recently used first; delete old incomplete files.

        Raises:
            UntrustedError: another user may write to the directory.
            ValueError: more than `MAX_FILES`.
        """
        files: list[StoredFile] = []
        with suppress(FileNotFoundError), self._folder() as folder, os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_FILES:
                    raise ValueError(f"{self.directory}: expected at most {MAX_FILES} files")
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(PARTIAL):
                        if status.st_mtime < time.time() - STALE_SECONDS:
                            os.unlink(entry.name, dir_fd=folder)
                    elif entry.name.endswith(self.suffix):
                        files.append(StoredFile(entry.name, status.st_size, status.st_mtime))
        return sorted(files, key=lambda file: (file.used, file.name))

    def forget(self, max_bytes: int = 0, but: str | None = None) -> tuple[int, int]:
        """Delete least recently used files except `but` down to `max_bytes`; return number and bytes."""
        count = size = 0
        files = self.files()
        total = sum(file.bytes for file in files)
        with suppress(FileNotFoundError), self._folder() as folder:
            for file in files:
                if total <= max_bytes:
                    break
                if file.name != but:
                    with suppress(FileNotFoundError):  # another process was faster
                        os.unlink(file.name, dir_fd=folder)
                        count, size = count + 1, size + file.bytes
                    total -= file.bytes
        return count, size

    def read_start(self, name: str, count: int) -> bytes:
        """Return the first bytes of a file without marking it as used; raises as `require_file`."""
        with self._folder() as folder, self._opened(folder, name) as file:
            return file.read(count)

    @contextmanager
    def _folder(self) -> Iterator[int]:
        folder = open_own_folder(self.directory)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _opened(self, folder: int, name: str) -> Iterator[BinaryIO]:
        flags, path = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, self.directory / name
        try:
            handle = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):  # EMLINK on FreeBSD
                raise UntrustedError(path, "is a link", f"rm {path}") from error
            raise
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UntrustedError(path, "is no regular file", f"rm -r {path}")
            require_own(path, status)
            yield file
