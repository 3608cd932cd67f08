"""Peak memory of a scoring process excludes the input and output file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import score_memory

MB = 10**6

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is Linux's; no /proc/self/status here"),
]


@pytest.mark.parametrize(
    ("ending", "limit"),
    # Lines: 15 MB. The input has 46 MB, the output 100 MB.
    # Parquet: 101 MB, most of it for a row group of 65,536 scores that is being written. Read whole, or as one batch of
    # a row group, the file would take 181 MB and more.
    [(".jsonl", 35 * MB), (".parquet", 140 * MB)],
)
def test_neither_input_nor_output_is_held(tmp_path: Path, root: Path, ending: str, limit: int) -> None:
    input, output = tmp_path / f"in{ending}", tmp_path / f"out{ending}"
    score_memory.write(input)
    assert input.stat().st_size > 40 * MB
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests" / "reference" / "processes")]),
        "JAX_PLATFORMS": "cpu",
        # Freed memory goes back at once: otherwise allocators keep more than the live memory.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": "0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    command = [sys.executable, score_memory.__file__, input, output]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert process.returncode == 0, process.stderr
    record = json.loads(process.stdout)
    assert record["rows"] == score_memory.ROWS
    assert 10 * MB < record["peak"] - record["before"] < limit, f"{(record['peak'] - record['before']) / MB:.0f} MB"
