"""Result files of scripts/check_device.py: at most 8 of 16 MiB, replaced whole."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from device_records import KINDS, RECORDS

MAX_FILES, MAX_BYTES = 8, 16 << 20
MAX_LOG = 2 << 20
TAR_BLOCK = 512
"""Bytes of a header of a tar file; its files take multiples of it."""


RESULTS = ("page.md", "log.txt", "left-out.txt", RECORDS, *(f"{kind}.tar" for kind in KINDS))


def clear_results(folder: Path) -> None:
    """Create the results folder and remove earlier results."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        (folder / name).unlink(missing_ok=True)


def write_page(folder: Path, text: str) -> None:
    """Replace page.md."""
    _replace(folder / "page.md", text.encode())


def write_log(folder: Path, logs: Mapping[str, Path]) -> None:
    """Replace log.txt: the end of each part's output, with tracebacks."""
    full, each = bytearray(), MAX_LOG // max(1, len(logs))
    for part, file in logs.items():
        content = file.read_bytes() if file.exists() else b""
        cut = f"\n... {len(content) - each:,} bytes left out" if len(content) > each else ""
        full += f"== {part}{cut}\n".encode() + content[-each:]
    _replace(folder / "log.txt", bytes(full))


def write_archives(folder: Path, evidence: Path) -> None:
    """Replace the three archives by all evidence; left-out.txt names the rest."""
    left_out = []
    for kind in KINDS:
        files = sorted((evidence / kind).glob("*.gz"), key=lambda file: (file.stat().st_mtime, file.name))
        if not files:
            continue
        packed, size = io.BytesIO(), 10 << 10
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in files:
                bytes_in_archive = 3 * TAR_BLOCK + file.stat().st_size
                if size + bytes_in_archive > MAX_BYTES:
                    left_out.append(f"{kind}/{file.name}: {file.stat().st_size:,} bytes")
                    continue
                size += bytes_in_archive
                archive.add(file, file.name)
        _replace(folder / f"{kind}.tar", packed.getvalue())
    if left_out:
        _replace(folder / "left-out.txt", "\n".join(left_out).encode())


def _replace(file: Path, content: bytes) -> None:
    part = file.with_name(f".{file.name}.part")
    part.write_bytes(content)
    part.replace(file)
