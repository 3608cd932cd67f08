"""Two processes store and reload executables, all or none; they may leave in turn."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from random_checkpoint import write_random_checkpoint

from hybridlm.multiprocess.environment import ADDRESS, COUNT, NUMBER
from hybridlm.multiprocess.launch import free_port

SCRIPT = Path(__file__).parents[2] / "reference/processes/keep_together.py"
FLAGS = "--xla_force_host_platform_device_count=1"


def run(directory: Path, timeout: float = 20.0, late: float = 0.0) -> list[Any]:
    """Return the steps of each process that came from the store, and the tokens."""
    joint = {**os.environ, ADDRESS: f"127.0.0.1:{free_port()}", COUNT: "2", "XLA_FLAGS": FLAGS}
    command = [sys.executable, SCRIPT, directory, directory / "cache", str(timeout), str(late)]
    running = [
        subprocess.Popen(command, env={**joint, NUMBER: str(i)}, stderr=subprocess.PIPE, text=True) for i in range(2)
    ]
    messages = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], messages
    results = [json.loads(re.findall("FOUND (.*)", item)[0]) for item in messages]
    assert [item[0] for item in results] == [0, 1]
    return [results[0][1], results[1][1], results[0][2]]


@pytest.mark.long
def test_a_second_run_of_two_processes_compiles_nothing(tmp_path: Path) -> None:
    write_random_checkpoint("dense_base", tmp_path, num_hidden_layers=2, full_attention_interval=2)
    first = run(tmp_path)
    assert len(first[0]) == 3 and not any([*first[0].values(), *first[1].values()])
    saved = set((tmp_path / "cache/steps").glob("*.step"))
    assert len(saved) == 6
    second = run(tmp_path)
    assert second[0].keys() == first[0].keys() and all([*second[0].values(), *second[1].values()])
    assert second[2] == first[2]
    # Each step is missing in one process: nobody loads it, and it is kept anew.
    for path in sorted(saved, key=lambda path: path.stat().st_mtime)[::2]:
        path.unlink()
    third = run(tmp_path)
    for name in first[0]:
        assert third[0][name] == third[1][name]
    assert third[2] == first[2] and not all(third[0].values())
    assert set((tmp_path / "cache/steps").glob("*.step")) == saved


@pytest.mark.long
def test_a_process_may_leave_late(tmp_path: Path) -> None:
    """JAX sends SIGABRT to all processes if its final barrier is shorter than this."""
    write_random_checkpoint("dense_base", tmp_path, num_hidden_layers=2, full_attention_interval=2)
    run(tmp_path, timeout=12.0, late=6.0)
