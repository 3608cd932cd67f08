"""Hash of running code's sources, unless they have changed since import.

A package records its sources' stamps before import; while they are unchanged, loaded modules come from these sources.
Bytecode of other content with the same size and time is part of the hash.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and nanoseconds of the last change of content and of status."""
HEADER = 16
"""Bytes before a bytecode file's code: magic number, flags, then the source's time and size, or its hash."""
_noted: dict[Path, dict[str, Stamp]] = {}


def note_sources(*folders: Path) -> None:
    for folder in folders:
        _noted.setdefault(folder, stamps(folder))


def running_hash(folders: Sequence[Path]) -> str | None:
    """Return the sha256 of packages' sources; None if other code may be loaded.

    None without recorded stamps or sources, in a zip archive, with changed sources, or a module from another file.
    """
    if not all(_noted.get(folder) for folder in folders):
        return None
    digest = _hash_once(tuple(folders))
    return digest if all(_is_as_imported(folder) for folder in folders) else None


_hash_once = cache(lambda folders: hash_of_sources(folders))


def hash_of_sources(folders: Sequence[Path]) -> str:
    """Return the sha256 of names and contents of all Python files in folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            for name, part in ((path.relative_to(folder).as_posix(), content), ("bytecode", other_bytecode(path))):
                if part is not None:
                    digest.update(f"{folder.name}/{name}\0{len(part)}\0".encode())
                    digest.update(part)
    return digest.hexdigest()


def other_bytecode(path: Path) -> bytes | None:
    """Return the bytecode that Python loads in place of a changed source, or None.

    Python compares only seconds and size. Bytecode newer than the source's last change comes from it.
    """
    try:
        with open(importlib.util.cache_from_source(os.fspath(path)), "rb") as file:
            header, written, status = file.read(HEADER), os.fstat(file.fileno()).st_mtime_ns, path.stat()
            if int.from_bytes(header[4:8], "little"):  # the header contains the source's hash
                is_same = header[8:] == importlib.util.source_hash(path.read_bytes())
            else:
                time_and_size = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
                is_loaded = header[8:] == b"".join(part.to_bytes(4, "little") for part in time_and_size)
                is_same = written > status.st_ctime_ns or not is_loaded
            return None if is_same else header + file.read()
    except (OSError, NotImplementedError):
        return None


def stamps(folder: Path) -> dict[str, Stamp]:
    return dict(_stamps(os.fspath(folder))) if folder.is_dir() else {}


def _stamps(folder: str) -> Iterator[tuple[str, Stamp]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                times = status.st_mtime_ns, status.st_ctime_ns
                yield entry.path, (status.st_dev, status.st_ino, status.st_size, *times)
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _stamps(entry.path)


def _is_as_imported(folder: Path) -> bool:
    noted, start = _noted[folder], f"{folder.name}."
    for name, module in list(sys.modules.items()):
        if name == folder.name or name.startswith(start):
            spec: Any = getattr(module, "__spec__", None)
            if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin not in noted:
                return False
    try:
        return stamps(folder) == noted
    except OSError:  # a file is being replaced
        return False


note_sources(Path(__file__).parents[1])
