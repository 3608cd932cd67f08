"""First pass over a file: its hash, its windows of rows, and duplicate ids."""

import hashlib
import os
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridlm.files.json_lines import Id
from hybridlm.score_files.rows import START, IdKinds, Mark, TextSource

MAX_WINDOW_BYTES = 1 << 20
"""Bytes of a window; bounds the loss of a kill."""


@dataclass(frozen=True)
class Limits:
    """Bytes of parts (common prefixes once) and of sort windows (0: no sorting)."""

    rows: int
    bytes: int
    sorted: int


@dataclass(frozen=True)
class RowWindow:
    start: Mark
    rows: int
    size: int


@dataclass(frozen=True)
class Survey:
    """Result of the first pass over a file; `repeated` has a fault by row."""

    sha256: str
    windows: list[RowWindow]
    repeated: dict[int, str]
    ids: IdKinds
    prompts: bool = False


def survey(
    path: Path, source: TextSource, limits: Limits, strict: bool, report: Callable[[int], None], rows: str = "rows"
) -> Survey:
    """Read a file once, and again if hashes of ids collide.

    Memory: 9 bytes per id, a few hundred per window and duplicate id.

    Raises:
        ValueError: no rows, a row with a fault if `strict`.
    """
    with source.path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    windows, hashes, kinds = [], array("q"), IdKinds()
    begin, count, size, mark, prompts = START, 0, 0, START, False
    for row, mark in source.rows(START):
        if row.fault is not None and strict:
            raise ValueError(f"{path}: {source.unit} {row.number}: {row.fault}")
        if row.id is not None:
            hashes.append(hash(row.id))
            kinds.setdefault(_kind(row.id), row.number)
        count, size, prompts = count + 1, size + row.size, prompts or row.key in ("prompt", "messages")
        if count >= limits.rows or size >= limits.bytes:
            windows.append(RowWindow(begin, count, size))
            begin, count, size = mark, 0, 0
            report(mark.row)
    if count:
        windows.append(RowWindow(begin, count, size))
    if not windows:
        raise ValueError(f"{path}: holds no {rows}; expected at least one {source.unit}")
    repeated = _repeated(source, _twice(hashes))
    if repeated and strict:
        number, fault = next(iter(repeated.items()))
        raise ValueError(f"{path}: {source.unit} {number}: {fault}")
    return Survey(sha256, windows, repeated, kinds, prompts)


def _kind(id: Id) -> str:
    if isinstance(id, str):
        return "string" if id.isascii() or not re.search("[\ud800-\udfff]", id) else "string that UTF-8 cannot hold"
    return "whole number" if -(2**63) <= (id or 0) < 2**63 else "whole number beyond 64 bits"


def _twice(hashes: "array[int]") -> set[int]:
    if len(hashes) < 2:
        return set()
    values = np.frombuffer(hashes, np.int64)
    values.sort()  # in place: no second array of them
    return set(values[1:][values[1:] == values[:-1]].tolist())


def _repeated(source: TextSource, hashes: set[int]) -> dict[int, str]:
    first: dict[Id, int] = {}
    repeated = dict[int, str]()
    for row, _ in source.rows(START) if hashes else ():
        if row.id is not None and hash(row.id) in hashes and first.setdefault(row.id, row.number) != row.number:
            place = f"{source.unit} {first[row.id]}"
            repeated[row.number] = f"{source.id_name}: is used twice, first in {place}; ids have to be distinct"
    return repeated


def identity(path: Path) -> tuple[int, ...]:
    """Return a value that changes with a file's content."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
