"""Write captures, a quantised copy, a model and a certificate on a small disk.

    unshare --mount python full_outputs.py FOLDER CHECKPOINT

in its own mount namespace, where it may mount. Every error has to name what did not fit, and nothing may be left.
"""

import errno
import pathlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import numpy as np

import hybridlm
from hybridlm.checkpoint.quantise import quantise_checkpoint
from hybridlm.checkpoint.saved import write
from hybridlm.cli.verify_report import write_certificate
from hybridlm.requests import captured_table
from hybridlm.requests.captured import Recorder
from ir_passes import Certificate

ROWS, HIDDEN = 100, 512
NUMBERS = np.random.default_rng(0).normal(size=(ROWS, HIDDEN)).astype(np.float32)


def capture(target: pathlib.Path) -> None:
    writer = Recorder(ROWS, (0,), HIDDEN, [], target)
    try:
        for i, numbers in enumerate(NUMBERS):
            writer.put(i, {0: numbers}, None)
        writer.finish()
    finally:
        writer.close()


def table(target: pathlib.Path) -> None:
    capture_table = captured_table.CaptureTable(target, (0,), HIDDEN, [])
    writer = Recorder(1, (0,), HIDDEN, [], None, partial(capture_table.add, 0))
    try:
        for i, numbers in enumerate(NUMBERS):
            writer.put(i, {0: numbers}, None)
        capture_table.finish()
    finally:
        capture_table.close()


class LongCertificate:
    """One of 200 kB."""

    def to_json(self) -> str:
        return f'"{"x" * 200_000}"'


def certificate(target: pathlib.Path) -> None:
    write_certificate(target.parent, target.stem, cast(Certificate, LongCertificate()))


def fails(disk: pathlib.Path, name: str, run: Callable[[pathlib.Path], Any]) -> None:
    try:
        run(disk / name)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        named = "" if error.filename is None else pathlib.Path(error.filename).relative_to(disk).parts[0]
        assert named.removeprefix(".").startswith(name), error
    else:
        raise AssertionError(f"{name}: the disk is large enough")
    assert not list(disk.iterdir()), (name, list(disk.iterdir()))
    print(name)


def main(folder: pathlib.Path, checkpoint: pathlib.Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", disk], check=True)
    lm = hybridlm.load(checkpoint, lanes=1, context=16, chunk=4)
    try:
        fails(disk, "captured.safetensors", capture)
        with patch.object(captured_table, "MAX_GROUP_BYTES", 1 << 14):
            fails(disk, "captured.parquet", table)
        fails(disk, "certificate.json", certificate)
        fails(disk, "quantised", lambda target: quantise_checkpoint(checkpoint, target, scheme="int8"))
        fails(disk, "saved", lm.save)
        # Another writer has taken the room meanwhile.
        with patch.object(write, "_require_room", lambda *_: None):
            fails(disk, "taken", lm.save)
    finally:
        subprocess.run(["umount", disk], check=True)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
