"""The store of results that are expensive to compute: a directory of files by key.

Any number of processes of one user may read and write it. Content that is unreadable, too long or damaged counts as
absent, and so does everything that somebody else could have written (`trust`): the result is computed again. Files in
use are marked by their time, so that the least recently used are deleted first.
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
"""Files and folders that a warning has named."""

T = TypeVar("T")

MAX_FILES = 100_000
STALE_SECONDS = 24 * 3600.0
"""Age of incomplete files from processes that have ended."""


class StoredFile(NamedTuple):
    """A file of a store.

    Attributes:
        used: when it was last written or read, in seconds since the epoch.
    """

    name: str
    bytes: int
    used: float


class FileStore:
    """A directory of files by key.

    Args:
        directory: created for this user alone, by the first write.

    Attributes:
        suffix: of the files that are listed and deleted.
    """

    suffix: ClassVar[str] = ""

    def __init__(self, directory: Path):
        self.directory = directory

    def read_file(self, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a file; None if unreadable, too long or not trusted."""
        try:
            return self.require_file(name, max_bytes)
        except UntrustedError as error:
            self.warn(error)
            return None
        except (OSError, ValueError):
            return None

    def require_file(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a file, and mark the file as used.

        Raises:
            OSError: it cannot be read.
            UntrustedError: somebody else could have written it.
            ValueError: it is longer than `max_bytes` bytes.
        """
        with self._folder() as folder, self._opened(folder, name) as file:
            content = file.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise ValueError(f"it has {os.fstat(file.fileno()).st_size} bytes, more than {max_bytes}")
            with suppress(OSError):  # a disk that is only read has no order of use
                os.utime(file.fileno())
        return content

    def read_record(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the record in a file; None without a record.

        Args:
            name: of the file.
            parse: content -> record, or a RecordError.
        """
        content = self.read_file(name, MAX_CHARACTERS)
        try:
            return None if content is None else parse(content)
        except RecordError:
            return None

    def write_file(self, name: str, content: bytes) -> None:
        """Write a file atomically.

        Raises:
            OSError: the directory cannot be written.
            UntrustedError: somebody else may write to the directory.
        """
        make_own_folder(self.directory)
        with self._folder(), whole_file(self.directory / name) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)

    def warn(self, error: UntrustedError) -> None:
        """Log why files are not read, once for each file or folder at fault."""
        if error.path not in _warned:
            _warned.add(error.path)
            _log.warning("%s: kept files are not used, results are computed anew: %s", self.directory, error)

    def files(self) -> list[StoredFile]:
        """Return all files, the least recently used first; delete old incomplete files.

        Raises:
            UntrustedError: somebody else may write to the directory.
            ValueError: there are more than `MAX_FILES`.
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
        """Delete the least recently used files, down to a number of bytes.

        Args:
            max_bytes: of the remaining files.
            but: name of a file to keep.

        Returns:
            Number of deleted files, and their bytes.

        Raises:
            UntrustedError, ValueError: see `files`.
        """
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
        """Return the first bytes of a file, without a record of its use.

        Raises the errors of `require_file`.
        """
        with self._folder() as folder, self._opened(folder, name) as file:
            return file.read(count)

    @contextmanager
    def _folder(self) -> Iterator[int]:
        """The directory, open."""
        folder = open_own_folder(self.directory)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _opened(self, folder: int, name: str) -> Iterator[BinaryIO]:
        """A file of the directory, open; a link is refused."""
        flags, path = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, self.directory / name
        try:
            handle = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):  # the latter in FreeBSD
                raise UntrustedError(path, "is a link", f"rm {path}") from error
            raise
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UntrustedError(path, "is no regular file", f"rm -r {path}")
            require_own(path, status)
            yield file
