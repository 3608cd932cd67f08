"""A full disk: a small in-memory file system, enlarged afterwards."""

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


def on_a_small_disk(tmp_path: Path, script: str, *arguments: Path) -> list[str]:
    """Run a script in its own mount namespace; return its printed lines."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(hybridlm.__file__).parents[1]),
        "PYTHONWARNINGS": "ignore",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [*namespace(), sys.executable, REFERENCE / "processes" / script, tmp_path, *arguments]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout.splitlines()


def test_whole_or_nothing_of_every_other_output(tmp_path: Path):
    """States, copies, saved models and certificates: errors that name the file, and nothing is left."""
    result = on_a_small_disk(tmp_path, "full_outputs.py", REFERENCE.parent / "golden" / "dense_interval")
    assert len(result) == 6


@pytest.mark.long
def test_every_size_of_a_full_disk(tmp_path: Path):
    """`score` in both formats and `batch`: clear messages, nothing damaged, equal bytes after room."""
    lines = on_a_small_disk(tmp_path, "full_disk.py")
    settings = dict(line.split(" ", 1) for line in lines)
    assert set(settings) == {"out.jsonl", "out.parquet", "answers.jsonl"}
    for output in ("out.jsonl", "out.parquet"):
        # Whatever is written last was what did not fit, once at least.
        assert all(name in settings[output] for name in ("manifest.jsonl", "part", "whole")), settings
