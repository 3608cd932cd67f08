"""Files that appear whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def replaceable(output: Path, input: Path | None = None) -> Path:
    """The file that an output replaces or makes, links resolved.

    Raises:
        FileNotFoundError: its folder is not there.
        ValueError: it is the input, or no regular file.
    """
    output = Path(os.path.realpath(output))
    if not output.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(output.parent))
    if output.exists():
        if not output.is_file():
            # Renaming over it would replace a directory or a device such as /dev/null.
            raise ValueError(f"{output}: expected a file or a new name, found something that is no regular file")
        if input is not None and input.exists() and output.samefile(input):
            raise ValueError(f"{output}: is the input, too; give another name")
    return output


@contextmanager
def replacing(output: Path, input: Path | None = None) -> Iterator[TextIO]:
    """A file beside `output` that takes its name once everything is written, and is gone if anything fails."""
    output = replaceable(output, input)
    partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("x", encoding="ascii", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
