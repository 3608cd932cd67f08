"""Output files: checked early, written whole, named in errors; versions of files."""

import errno
import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ir_passes.files.atomic import whole_file


def replaceable(output: Path, input: Path | None = None) -> Path:
    """Return the path that an output replaces or creates, with links resolved.

    Raises:
        FileNotFoundError: its folder does not exist.
        PermissionError, ValueError: no file can be created; the input, or no regular file.
    """
    if str(output) == "-" or (output.exists() and not output.is_file() and not output.is_dir()):
        # Before links are resolved: the target of /dev/stdout has an unknown name.
        raise ValueError(
            f"{output}: expected a regular file or a new name, got a stream or a device; an output appears whole, and "
            "its unfinished parts are in the same folder: write a file and print it (hybridlm ... OUTPUT && cat OUTPUT)"
        )
    output = Path(os.path.realpath(output))
    if not output.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(output.parent))
    if not os.access(output.parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, "no file can be made in this directory", str(output.parent))
    if output.exists():
        if not output.is_file():
            raise ValueError(f"{output}: expected a regular file or a new name, found a directory")
        if input is not None and input.exists() and output.samefile(input):
            raise ValueError(f"{output}: is also the input; give another name")
    return output


def new_path(path: Path) -> Path:
    """Return a new path, with its folder's links resolved; raises FileNotFoundError."""
    path = Path(os.path.realpath(path.parent)) / path.name
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "exists already; delete it, or give a new name", str(path))
    return path


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def naming(path: Path, only: Sequence[int] | None = None) -> Iterator[None]:
    """Add a file's name to errors of writing; `only` restricts their numbers."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None and (only is None or error.errno in only):
            raise OSError(error.errno, error.strerror or os.strerror(error.errno), str(path)) from error
        raise


@contextmanager
def replacing(output: Path) -> Iterator[TextIO]:
    """Open a text file (bytes: `buffer`) for a whole output; raises as `replaceable`."""
    output = replaceable(output)
    # Errors in the caller's block may concern other files; only a full disk surely concerns this one.
    with naming(output, NO_ROOM), whole_file(output) as raw:
        file = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
        yield file
        file.flush()
        file.detach()


def sync(path: Path) -> None:
    """Wait until a file, or a directory's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


SETTLED_NS = 3_000_000_000
"""Age after which a later change has another time; file systems count up to 2 s as one."""


@dataclass(frozen=True)
class FileVersion:
    """Identity of a file's content.

    Attributes:
        modified, changed: nanoseconds of the last write, and of the last change of content or status, which no program
            can set back.
        settled: a later write changes one of these.
    """

    device: int
    inode: int
    size: int
    modified: int
    changed: int
    settled: bool = field(compare=False)

    @classmethod
    def of(cls, status: os.stat_result) -> "FileVersion":
        modified, changed = status.st_mtime_ns, status.st_ctime_ns
        settled = time.time_ns() - max(modified, changed) >= SETTLED_NS
        return cls(status.st_dev, status.st_ino, status.st_size, modified, changed, settled)
