"""Exclusive lock of a folder of parts."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ir_passes.files.trust import UntrustedError, require_own


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Hold `fcntl.flock` on a folder of parts; yield its path.

    Raises:
        ValueError: another process has it, or another user could have written the parts.
    """
    import fcntl  # absent on Windows

    path = folder / "lock"
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            _require_own(folder)
            file = path.open("ab")
        except FileNotFoundError:
            continue  # another process has deleted the folder
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ValueError(
                f"{folder}: another process is writing to it; wait for it, or give another output"
            ) from None
        except OSError:
            file.close()
            raise
        if _is_open(path, file):
            break
        file.close()  # deleted between opening and locking
    with file:
        yield path


def _require_own(folder: Path) -> None:
    try:
        if stat.S_ISLNK((status := folder.lstat()).st_mode):
            raise UntrustedError(folder, "is a link", f"rm {folder}", folder=True)
        require_own(folder, status, folder=True)
    except UntrustedError as error:
        raise ValueError(f"{folder}: parts are not continued: {error}; or delete it, or give another output") from error


def _is_open(path: Path, file: IO[bytes]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False
