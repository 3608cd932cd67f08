"""`hybridlm bench --start`: a cold and a warm start in separate processes, and the table."""

from pathlib import Path

import pytest
from text_checkpoint import write_text_checkpoint

from hybridlm.bench.start import measure_starts

PARTS = ["python", "import", "open", "weights", "engine", "memory", "first answer"]


@pytest.mark.long
@pytest.mark.slow
def test_the_second_start_loads_the_steps_of_the_first(tmp_path: Path) -> None:
    directory = write_text_checkpoint(tmp_path)
    settings = {"lanes": 2, "context": 64, "chunk": 5, "dtype": "float32"}
    cold, (warm,) = measure_starts(str(directory), 4, settings, 1)
    for start, stored in ((cold, False), (warm, True)):
        assert list(start["parts"]) == PARTS and all(took >= 0 for took in start["parts"].values())
        assert start["total"] == sum(start["parts"].values())
        assert start["steps"]["generate 1x5 of 2"]["stored"] is stored
    assert {"trace", "prove", "lower", "compile", "audit", "keep"} <= set(cold["steps"]["generate 1x5 of 2"]["seconds"])
    assert set(warm["steps"]["generate 1x5 of 2"]["seconds"]) == {"load"}
    with pytest.raises(ChildProcessError, match="CheckpointError"):
        measure_starts(str(tmp_path / "none"), 4, settings, 0)
