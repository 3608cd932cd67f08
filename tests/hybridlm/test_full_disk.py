"""A disk that is full, in earnest: a small file system in memory, made larger afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hybridlm

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def namespace() -> list[str]:
    """Return a command prefix that allows mounting; skip if there is none."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux) to mount a small file system; test_score_parts.py has limits of files")
    faults = []
    for way in (["unshare", "--mount"], ["unshare", "--mount", "--user", "--map-root-user"]):
        tried = subprocess.run([*way, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True)
        if tried.returncode == 0:
            return way
        faults.append(tried.stderr.strip())
    pytest.skip(f"may not mount a small file system: {'; '.join(faults)}")


@pytest.mark.long
def test_every_size_of_a_full_disk(tmp_path: Path):
    """`score` to both formats, and `batch`: a clear message, nothing damaged, and with more room the same bytes."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(hybridlm.__file__).parents[1]),
        "PYTHONWARNINGS": "ignore",
        "OPENBLAS_NUM_THREADS": "1",
        "SQLITE_TMPDIR": str(tmp_path / "disk"),
    }
    command = [*namespace(), sys.executable, REFERENCE / "processes" / "full_disk.py", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(found) == {"out.jsonl", "out.parquet", "answers.jsonl"}
    for output in ("out.jsonl", "out.parquet"):
        # Whatever is written last was what did not fit, once at least.
        assert all(name in found[output] for name in ("manifest.jsonl", "part", "whole")), found
