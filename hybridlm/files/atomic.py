"""Files and directories that appear whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def replaceable(output: Path, input: Path | None = None) -> Path:
    """The file that an output replaces or makes, links resolved.

    Raises:
        FileNotFoundError: its folder is not there.
        PermissionError: no file can be made there.
        ValueError: it is the input, or no regular file.
    """
    output = Path(os.path.realpath(output))
    if not output.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(output.parent))
    if not os.access(output.parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, "no file can be made in this directory", str(output.parent))
    if output.exists():
        if not output.is_file():
            # Renaming over it would replace a directory or a device such as /dev/null.
            raise ValueError(f"{output}: expected a file or a new name, found something that is no regular file")
        if input is not None and input.exists() and output.samefile(input):
            raise ValueError(f"{output}: is the input, too; give another name")
    return output


def new_path(path: Path) -> Path:
    """The path of something that is not there yet, links of its folder resolved.

    Raises:
        FileExistsError: something is there.
        FileNotFoundError: its folder is not.
    """
    path = Path(os.path.realpath(path.parent)) / path.name
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "is there already; delete it, or give a name that is not there", str(path))
    return path


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What only writing can raise."""


@contextmanager
def naming(path: Path, only: Sequence[int] | None = None) -> Iterator[None]:
    """An error of writing, as of a full disk, does not know the file.

    Args:
        path: the file.
        only: numbers of the errors that concern it; None for all.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None and (only is None or error.errno in only):
            raise OSError(error.errno, error.strerror or os.strerror(error.errno), str(path)) from error
        raise


@contextmanager
def replacing(output: Path, input: Path | None = None) -> Iterator[TextIO]:
    """A file beside `output` that takes its name once everything is written, and is gone if anything fails."""
    output = replaceable(output, input)
    partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
    try:
        # Whoever has the file reads others, too; what their errors are about is not known here.
        with naming(output, NO_ROOM), partial.open("x", encoding="ascii", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """The content of a file, or the names in a directory, have reached the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
