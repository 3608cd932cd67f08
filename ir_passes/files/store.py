"""The store of results that are expensive to compute: a directory of files by key.

Any number of processes may read and write it. Content that cannot be read, is too long or is not what it should be
counts as absent: the result is computed again. Files in use are marked by their time, so that those which were not used
for the longest can be deleted first.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, TypeVar

from ir_passes.files.atomic import PARTIAL, whole_file
from ir_passes.files.record import MAX_CHARACTERS, RecordError

T = TypeVar("T")

MAX_FILES = 100_000
STALE_SECONDS = 24 * 3600.0
"""Age from which a file that was never finished is taken for one of a process that has ended."""


class UntrustedError(ValueError):
    """A file of a private store, or its folder, is none or could have been written by somebody else.

    Attributes:
        folder: whether it is the folder.
    """

    def __init__(self, reason: str, folder: bool = False):
        super().__init__(f"the folder {reason}" if folder else f"it {reason}")
        self.folder = folder


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
        directory: created by the first write.

    Attributes:
        private: the directory is made for this user alone, and nothing is read or written that others may write.
        suffix: of the files that are listed and deleted.
    """

    private: ClassVar[bool] = False
    suffix: ClassVar[str] = ""

    def __init__(self, directory: Path):
        self.directory = directory

    def read_file(self, name: str, most: int) -> bytes | None:
        """Return the content of a file; None if it is absent, unreadable or longer than `most` bytes."""
        try:
            return self.require_file(name, most)
        except (OSError, ValueError):
            return None

    def require_file(self, name: str, most: int) -> bytes:
        """Return the content of a file, which is used now.

        Raises:
            OSError: it cannot be read.
            UntrustedError: the store is private, and it may be another's.
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
            UntrustedError: the store is private, and others may write to the directory.
        """
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        self.directory.mkdir(mode=0o700 if self.private else 0o777, exist_ok=True)
        with self._folder(), whole_file(self.directory / name) as file:
            if self.private:
                os.fchmod(file.fileno(), 0o600)
            file.write(content)

    def files(self) -> list[StoredFile]:
        """Return all files, those first that were not used for the longest; partial ones of a day ago are deleted.

        Raises:
            UntrustedError: the store is private, and others may write to the directory.
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
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self.private:
                _require_own(os.fstat(folder), folder=True)
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _opened(self, folder: int, name: str) -> Iterator[BinaryIO]:
        """A file of the directory; of a private one a link is none."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if self.private else 0)
        try:
            handle = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UntrustedError("is a link") from error
            raise
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UntrustedError("is no regular file")
            if self.private:
                _require_own(status)
            yield file


def _require_own(status: os.stat_result, folder: bool = False) -> None:
    """Raise UntrustedError where somebody else could have written a file or a folder."""
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"belongs to user {status.st_uid}, not to {os.geteuid()}", folder)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedError(f"may be written by others (mode {stat.S_IMODE(status.st_mode):o})", folder)
