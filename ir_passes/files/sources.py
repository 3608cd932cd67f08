"""The hash of Python sources: what was made by other code is made anew."""

import hashlib
from collections.abc import Sequence
from pathlib import Path


def hash_of_sources(folders: Sequence[Path]) -> str:
    """Return the sha256 of all Python files below some folders, in this order, their names included."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def changed_since(folders: Sequence[Path], time: float) -> bool:
    """Whether a Python file below some folders was changed after a time, in seconds since the epoch."""
    return any(path.stat().st_mtime > time for folder in folders for path in folder.rglob("*.py"))
