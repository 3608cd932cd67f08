"""The command scores 100,000 Parquet rows, killed five times: the undisturbed file."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from text_checkpoint import write_text_checkpoint

import hybridlm

ROWS, KILLS = 100_000, 5


@pytest.mark.long
def test_killed_five_times(tmp_path: Path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    chance = random.Random(0)
    texts = ["".join(chance.choices("Ada Ben has the kite.", k=chance.randrange(2, 17))) for _ in range(ROWS)]
    pq.write_table(pa.table({"id": list(range(ROWS)), "text": texts}), tmp_path / "in.parquet")
    model = write_text_checkpoint(tmp_path)

    def start(output: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "hybridlm", "score", "--model", model, "--chunk", "16", "--context", "64"]
        command += ["--window", "1024"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(hybridlm.__file__).parents[1]),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        return subprocess.Popen([*command, tmp_path / "in.parquet", tmp_path / output], env=environment)

    begin = time.monotonic()
    assert start("whole.parquet").wait() == 0
    seconds = time.monotonic() - begin
    progress = []
    for _ in range(KILLS):
        process = start("out.parquet")
        # Loading takes longer on one machine than on another: so many parts later, and somewhat more.
        until = (progress[-1] if progress else 0) + chance.randrange(1, 14)
        while len(list(tmp_path.glob("out.parquet.parts/part-*"))) < until and process.poll() is None:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        progress.append(len(list(tmp_path.glob("out.parquet.parts/part-*"))))
    assert start("out.parquet").wait() == 0
    print(f"{ROWS / seconds:.0f} rows/s; parts when it was killed: {progress}")
    assert progress == sorted(progress) and progress[-1] > 0
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    rows = pq.read_table(tmp_path / "out.parquet")
    assert rows.column("id").to_pylist() == list(range(ROWS)) and rows.column("error").null_count == ROWS
    assert not list(tmp_path.glob("*.parts"))
