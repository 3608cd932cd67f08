"""Check that no other user could have written a stored file or its path."""

import os
import stat
from pathlib import Path
from typing import Any

MAX_LINKS = 40
"""Bound on symbolic links of a path, as in Linux."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""Mode bits for group and others; on Linux the group's bits also limit an ACL."""
ROOT = 0


class UntrustedError(ValueError):
    """Another user could have written a stored file.

    Args:
        reason: predicate after "the folder" or "it".
        remedy: repair command.
        folder: a folder with all its files.
    """

    def __init__(self, path: Path, reason: str, remedy: str, folder: bool = False):
        super().__init__(f"{'the folder' if folder else 'it'} {reason}; {remedy}")
        self.path, self.folder, self._arguments = path, folder, (path, reason, remedy, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments


def require_own(path: Path, status: os.stat_result, folder: bool = False) -> None:
    """Raise UntrustedError unless this user owns a file and only this user may write it."""
    user = os.geteuid()
    if status.st_uid != user:
        raise UntrustedError(path, f"belongs to user {status.st_uid}, not to {user}", _chown(path, user), folder)
    if status.st_mode & OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise UntrustedError(path, f"may be written by others (mode {mode:o})", _chmod(path), folder)


def open_own_folder(folder: Path) -> int:
    """Open a folder that no other user can write or replace; errors as of `require_own_path`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        require_own(folder, os.fstat(descriptor), folder=True)
        require_own_path(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_own_path(folder: Path) -> None:
    """Raise UntrustedError if another user could replace a folder or a name on its path.

    Names belong to this user or root; parents are writable only by their owners, or sticky like /tmp. `require_own`
    checks the folder itself. The check ends at an absent name.

    Raises:
        OSError: a name is no folder, or more than `MAX_LINKS` links.
    """
    user, links = os.geteuid(), 0
    current, names = os.sep, list(reversed(folder.absolute().parts))
    while names:
        current = os.path.join(current, names.pop())
        try:
            status = os.lstat(current)
        except FileNotFoundError:
            return
        path = Path(current)
        if status.st_uid not in (user, ROOT):
            remedy = _chown(path, user)
            raise UntrustedError(path, f"is reached by {path}, which belongs to user {status.st_uid}", remedy, True)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise OSError(f"{folder}: expected at most {MAX_LINKS} symbolic links on the path")
            current, target = os.path.dirname(current), Path(os.readlink(current))
            names += reversed(target.parts)
        elif names and status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            reason = f"is in {path}, which may be written by others (mode {mode:o})"
            raise UntrustedError(path, reason, _chmod(path), True)


def make_own_folder(folder: Path) -> None:
    """Make a folder and missing parents with mode 700; raises as `require_own_path`."""
    require_own_path(folder)
    for parent in reversed([parent for parent in (folder, *folder.parents) if not parent.exists()]):
        parent.mkdir(mode=0o700, exist_ok=True)


def _chmod(path: Path) -> str:
    return f"chmod go-w {path}"


def _chown(path: Path, user: int) -> str:
    return f"chown {user} {path}, or name another folder"
