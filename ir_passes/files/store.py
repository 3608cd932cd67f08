"""A directory of files by key, for results that are expensive to compute.

Any number of processes may read and write it. Content that cannot be read, is too long or is not what it should be
counts as absent: the result is computed again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ir_passes.files.atomic import whole_file
from ir_passes.files.record import MAX_CHARACTERS, RecordError

T = TypeVar("T")


@dataclass(frozen=True)
class FileStore:
    """A directory of files by key.

    Attributes:
        directory: created by the first write.
    """

    directory: Path

    def read_file(self, name: str, most: int) -> bytes | None:
        """Return the content of a file; None if it is absent, unreadable or longer than `most` bytes."""
        try:
            with (self.directory / name).open("rb") as file:
                content = file.read(most + 1)
        except OSError:
            return None
        return content if len(content) <= most else None

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
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with whole_file(self.directory / name) as file:
            file.write(content)
