"""Atomic writes: a file appears whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""Suffix of incomplete files."""


def partial_path(path: Path, token: str | None = None) -> Path:
    """Return a hidden name in the folder of a path, for incomplete content.

    Args:
        path: the final name.
        token: makes the name unique; random by default.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(4) if token is None else token}{PARTIAL}")


@contextmanager
def whole_file(path: Path, partial: Path | None = None) -> Iterator[BinaryIO]:
    """Open a new file; rename it to `path` on success, delete it on failure.

    Args:
        path: replaced if it exists.
        partial: the name until then, unused and on the same file system; by default a hidden name in the folder.

    Raises:
        OSError: the file cannot be made, written or renamed; `path` is unchanged.
    """
    partial = partial_path(path) if partial is None else partial
    file = partial.open("xb")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
