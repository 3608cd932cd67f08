"""Atomic writes: a file appears whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"


def partial_path(path: Path, token: str | None = None) -> Path:
    """Return a hidden name in a path's folder for incomplete content, unique by `token`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4) if token is None else token}{PARTIAL}")


@contextmanager
def whole_file(path: Path, partial: Path | None = None) -> Iterator[BinaryIO]:
    """Open a new file; rename it to `path` on success, delete it on failure.

    Args:
        path: an existing file is replaced on success only.
        partial: new name on the same file system; by default hidden in the folder.
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
