"""Check that nobody else could have written a kept file, its folder or its path."""

import os
import stat
from pathlib import Path

MAX_LINKS = 40
"""Symbolic links that are followed on one path, as in Linux."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""Modes of a file that its group or everybody may write; on Linux the group's bits bound an ACL, too."""
ROOT = 0


class UntrustedError(ValueError):
    """Somebody else could have written a kept file.

    Args:
        path: file or folder at fault.
        reason: why, after "the folder" or "it".
        remedy: what to do, as a command.
        folder: whether a folder is at fault, so that all files in it are.

    Attributes:
        path, folder: as given.
    """

    def __init__(self, path: Path, reason: str, remedy: str, folder: bool = False):
        super().__init__(f"{'the folder' if folder else 'it'} {reason}; {remedy}")
        self.path, self.folder = path, folder


def require_own(path: Path, status: os.stat_result, folder: bool = False) -> None:
    """Raise UntrustedError unless a file belongs to this user and nobody else may write it.

    Args:
        path: for the message.
        status: of the open file.
        folder: whether it is a folder.
    """
    user = os.geteuid()
    if status.st_uid != user:
        raise UntrustedError(path, f"belongs to user {status.st_uid}, not to {user}", _chown(path, user), folder)
    if status.st_mode & OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise UntrustedError(path, f"may be written by others (mode {mode:o})", _chmod(path), folder)


def open_own_folder(folder: Path) -> int:
    """Open a folder that nobody else can write or replace; raises as `require_own_path`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        require_own(folder, os.fstat(descriptor), folder=True)
        require_own_path(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_own_path(folder: Path) -> None:
    """Raise UntrustedError if somebody else could replace a folder or a name on its path.

    Every name belongs to this user or to root. Every parent is writable by its owner alone, or is sticky like /tmp:
    there nobody renames the files of others. The folder itself is the business of `require_own`. A name that does not
    exist ends the check.

    Raises:
        OSError: a name on the path is no folder, or there are too many links.
    """
    user, links = os.geteuid(), 0
    place, names = os.sep, list(reversed(folder.absolute().parts))
    while names:
        place = os.path.join(place, names.pop())
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            return
        path = Path(place)
        if status.st_uid not in (user, ROOT):
            remedy = _chown(path, user)
            raise UntrustedError(path, f"is reached by {path}, which belongs to user {status.st_uid}", remedy, True)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise OSError(f"{folder}: expected at most {MAX_LINKS} symbolic links on the path")
            place, target = os.path.dirname(place), Path(os.readlink(place))
            names += reversed(target.parts)
        elif names and status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            reason = f"is in {path}, which may be written by others (mode {mode:o})"
            raise UntrustedError(path, reason, _chmod(path), True)


def make_own_folder(folder: Path) -> None:
    """Make a folder and its missing parents for this user alone; raises as `require_own_path`."""
    require_own_path(folder)
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def _chmod(path: Path) -> str:
    return f"chmod go-w {path}"


def _chown(path: Path, user: int) -> str:
    return f"chown {user} {path}, or name another folder"
