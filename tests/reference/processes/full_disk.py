"""Score a file and answer a batch on a small disk, then enlarge and repeat.

    unshare --mount python full_disk.py FOLDER

in its own mount namespace, where it may mount. Prints for each output which files did not fit, and how often.
"""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import typer
from toy_scorer import CONTEXT, NO_MODEL, TOY, run_toy, write_lines

from hybridlm.cli.options import reported

PAGE = os.sysconf("SC_PAGE_SIZE")
LINES = [{"id": i, "text": "a" * (i % CONTEXT + 1), "note": "x" * 700} for i in range(60)]
ROOM = 64 << 20


def mount(disk: pathlib.Path, size: int, repeat: bool = False) -> None:
    """Mount a disk in memory of this size, or enlarge it."""
    options = f"{'remount,' if repeat else ''}size={size}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)


def failed(run: Callable[[], Any]) -> str | None:
    """Message of the command; None where it succeeds."""
    string_io = io.StringIO()
    with contextlib.redirect_stderr(string_io):
        try:
            with reported(False):
                run()
        except typer.Exit:
            return string_io.getvalue()
    return None


def attempt(disk: pathlib.Path, size: int, output: pathlib.Path, expected: bytes, run: Callable[[], Any]) -> str | None:
    """Run on a small disk, then a larger one; return the unwritten file or None."""
    mount(disk, size)
    try:
        output.write_bytes(b"older")
        message = failed(run)
        if message is None:
            assert output.read_bytes() == expected, size
            return None
        assert message.startswith(f"error: {disk}") and "No space left on device" in message, message
        assert message.count("\n") == 1 and "Traceback" not in message, message
        where = pathlib.Path(message.removeprefix("error: ").split(": ")[0])
        assert output.read_bytes() in (b"older", expected), f"{size}: half an output"
        assert not list(disk.rglob("whole")), "half an output takes room that is short"
        # A part that the manifest does not name is not kept.
        saved = len(list(disk.rglob("part-*"))) - (where.name != "whole")
        assert ("are kept in" in message) == (saved > 0), (message, saved)
        mount(disk, ROOM, repeat=True)
        records = failed(run)
        assert records is None and output.read_bytes() == expected, (size, records)
        assert [path.name for path in disk.iterdir()] == [output.name], size
        return where.name
    finally:
        subprocess.run(["umount", disk], check=True)


def sweep(disk: pathlib.Path, output: pathlib.Path, run: Callable[[], Any]) -> Counter[str]:
    """Disks of one page, two pages, ... up to one that is large enough."""
    mount(disk, ROOM)
    assert failed(run) is None
    expected = output.read_bytes()
    subprocess.run(["umount", disk], check=True)
    counter: Counter[str] = Counter()
    for pages in range(1, 10_000):
        name = attempt(disk, pages * PAGE, output, expected, run)
        if name is None:
            return counter
        counter[name.split("-")[0]] += 1
    raise AssertionError("no disk was large enough")


def main(folder: pathlib.Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    texts = write_lines(folder / "in.jsonl", LINES)
    for name in ("out.jsonl", "out.parquet"):
        output = disk / name
        print(name, dict(sweep(disk, output, lambda output=output: run_toy(TOY, texts, output, window=5))))
    requests = [{"custom_id": f"{i:0100}", "url": "/v1/nothing"} for i in range(50)]
    batch = write_lines(folder / "batch.jsonl", requests)
    with patch("time.time", lambda: 0):
        output = disk / "answers.jsonl"
        print(output.name, dict(sweep(disk, output, lambda: run_toy(NO_MODEL, batch, output, window=8))))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
