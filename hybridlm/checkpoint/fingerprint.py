"""Fingerprints of models: SHA-256 of configuration and weights, on first use."""

import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.safetensors import ArrayFile
from hybridlm.errors import CheckpointError
from hybridlm.files.atomic import FileVersion

BLOCK = 8 << 20
MAX_THREADS = 16

_log = logging.getLogger("hybridlm")


class Fingerprint:
    """SHA-256 of a model, computed on its first comparison or conversion to text.

    Hashing takes longer than loading. The same unchanged files are equal without computation.

    Args:
        text: the SHA-256, or a function that computes it.
        source: versions of files and settings, if they identify the content.
    """

    def __init__(self, text: str | Callable[[], str], source: Hashable = None):
        self._text, self._source, self._lock = text, source, threading.Lock()

    def __str__(self) -> str:
        with self._lock:
            if not isinstance(self._text, str):
                self._text = self._text()
            return self._text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint):
            return str(self) == other
        same_source = self._source is not None and self._source == other._source
        return self is other or same_source or str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class CheckpointVersion(NamedTuple):
    """Identity of the content of an opened checkpoint.

    Attributes:
        description: SHA-256 of configuration, names, dtypes and shapes.
        files: path and version of each file.
    """

    path: Path
    description: str
    files: tuple[tuple[Path, FileVersion], ...]

    @property
    def settled(self) -> bool:
        """True if any later write to a file changes its version."""
        return all(version.settled for _, version in self.files)


def version_of(directory: CheckpointDirectory) -> CheckpointVersion:
    files = {file.path: file.version for file in map(_mapped, directory.files.values())}
    return CheckpointVersion(directory.path, _description(directory), tuple(sorted(files.items(), key=itemgetter(0))))


def checkpoint_fingerprint(directory: CheckpointDirectory) -> str:
    """Return the SHA-256 of the configuration and all tensors.

    It depends neither on path and shards nor on the layout of config.json.

    Raises:
        CheckpointError: a shortened file.
    """
    digest = hashlib.sha256(_description(directory).encode())
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        for block in threads.map(_hash_pieces, _blocks(directory)):
            digest.update(block)
    return digest.hexdigest()


def fingerprint_of_version(version: CheckpointVersion, reopen: Callable[[Path], object]) -> str:
    """Return the fingerprint of a checkpoint; random, with a logged warning, after changes of files."""
    try:
        directory = reopen(version.path)
        if isinstance(directory, CheckpointDirectory) and version_of(directory) == version:
            text = checkpoint_fingerprint(directory)
            if all(FileVersion.of(os.stat(path)) == file for path, file in version.files):
                return text
    except (CheckpointError, OSError):
        pass
    _log.warning(
        "%s has changed since it was loaded: prefixes and unfinished outputs of this model can be continued in this "
        "process only; load the model again",
        version.path,
    )
    return secrets.token_hex(32)


def _description(directory: CheckpointDirectory) -> str:
    digest = hashlib.sha256(json.dumps(directory.config, sort_keys=True).encode())
    if directory.quantisation_file is not None:
        digest.update(json.dumps(directory.quantisation_file, sort_keys=True).encode())
    for name in sorted(directory.files):
        info = directory.info(name)
        digest.update(json.dumps([name, info.dtype, info.shape]).encode())
    return digest.hexdigest()


def _mapped(file: object) -> ArrayFile:
    assert isinstance(file, ArrayFile), f"{file} has no bytes on a disk"
    return file


Piece = tuple[Path, int, int]
"""A file, and the first byte and the end of a piece."""


def _blocks(directory: CheckpointDirectory) -> Iterator[list[Piece]]:
    pieces: list[Piece] = []
    size = 0
    for name in sorted(directory.files):
        file = _mapped(directory.files[name])
        begin, end = file.place(name)
        for start in range(begin, end, BLOCK):
            stop = min(start + BLOCK, end)
            pieces.append((file.path, start, stop))
            size += stop - start
            if size >= BLOCK:
                yield pieces
                pieces, size = [], 0
    yield pieces


def _hash_pieces(pieces: list[Piece]) -> bytes:
    """Return the SHA-256 of pieces, unmapped: a mapped file that shrinks kills the process."""
    digest = hashlib.sha256()
    for path, run in groupby(pieces, itemgetter(0)):
        with path.open("rb", buffering=0) as file:
            for _, begin, end in run:
                file.seek(begin)
                while begin < end:
                    content = file.read(end - begin)
                    if not content:
                        raise CheckpointError(path, "has become shorter since it was opened; load again")
                    digest.update(content)
                    begin += len(content)
    return digest.digest()
