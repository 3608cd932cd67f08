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
"""Age from which a file that was never finished is taken for one of a process that has ended."""


class StoredFile(NamedTuple):
    """A file of a store.

    Attributes:
        bytes: its size.
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

    def read_file(self, name: str, most: int) -> bytes | None:
        """Return the content of a file; None if absent, unreadable, longer than `most` or not trusted."""
        try:
            return self.require_file(name, most)
        except UntrustedError as error:
            self.warn(error)
            return None
        except (OSError, ValueError):
            return None

    def require_file(self, name: str, most: int) -> bytes:
        """Return the content of a file, which is used now.

        Raises:
            OSError: it cannot be read.
            UntrustedError: somebody else could have written it.
            ValueError: it is longer than `most` bytes.
        """
        with self._folder() as folder, self._opened(folder, name) as file:
            content = file.read(most + 1)
            if len(content) > most:
                raise ValueError(f"it has {os.fstat(file.fileno()).st_size} bytes, more than {most}")
            with suppress(OSError):  # a disk that is only read has no order of use
                os.utime(file.fileno())
        return content

    def read_record(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the record in a file; None if there is none.

        Args:
            name: of the file.
            parse: the record from the content; a RecordError says that it is none.
        """
        content = self.read_file(name, MAX_CHARACTERS)
        try:
            return None if content is None else parse(content)
        except RecordError:
            return None

    def write_file(self, name: str, content: bytes) -> None:
        """Write a file; other processes see all of it or what was there before.

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
        """Return all files, those first that were not used for the longest; partial ones of a day ago are deleted.

        Raises:
            UntrustedError: somebody else may write to the directory.
            ValueError: there are more than `MAX_FILES`.
        """
        found: list[StoredFile] = []
        with suppress(FileNotFoundError), self._folder() as folder, os.scandir(folder) as listed:
            for number, one in enumerate(listed):
                if number >= MAX_FILES:
                    raise ValueError(f"{self.directory}: expected at most {MAX_FILES} files")
                with suppress(FileNotFoundError):
                    status = one.stat(follow_symlinks=False)
                    if one.name.endswith(PARTIAL):
                        if status.st_mtime < time.time() - STALE_SECONDS:
                            os.unlink(one.name, dir_fd=folder)
                    elif one.name.endswith(self.suffix):
                        found.append(StoredFile(one.name, status.st_size, status.st_mtime))
        return sorted(found, key=lambda one: (one.used, one.name))

    def forget(self, max_bytes: int = 0, but: str | None = None) -> tuple[int, int]:
        """Delete those that were not used for the longest, until at most so many bytes are left.

        Args:
            max_bytes: of all that stay.
            but: name of a file that stays.

        Returns:
            How many were deleted, and their bytes.

        Raises:
            UntrustedError, ValueError: see `files`.
        """
        count = size = 0
        files = self.files()
        total = sum(one.bytes for one in files)
        with suppress(FileNotFoundError), self._folder() as folder:
            for one in files:
                if total <= max_bytes:
                    break
                if one.name != but:
                    with suppress(FileNotFoundError):  # another process was faster
                        os.unlink(one.name, dir_fd=folder)
                        count, size = count + 1, size + one.bytes
                    total -= one.bytes
        return count, size

    def read_start(self, name: str, count: int) -> bytes:
        """Return the first bytes of a file, which does not count as used; raises as `require_file`."""
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
