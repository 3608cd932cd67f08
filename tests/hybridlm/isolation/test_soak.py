"""Some sessions of random traffic; an hour of it is `python scripts/soak.py`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SESSIONS = 60
"""The default tests have such traffic in their own process (test_engine_mutants.py)."""


@pytest.mark.long
def test_random_traffic(root: Path) -> None:
    command = [sys.executable, str(root / "scripts" / "soak.py"), "--sessions", str(SESSIONS), "--lanes", "4"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    counts = {name: int(count) for name, count in re.findall(r"^(\S.*?) +(\d+)$", result.stdout, re.MULTILINE)}
    assert counts["completions"] > 10 * SESSIONS and counts["sanitized steps"] > 0, result.stdout
    frequent = "preemptions", "accepted_tokens", "prefix_hits", "shared pages", "cancelled", "scored texts"
    assert all(counts[name] > SESSIONS / 4 for name in frequent), result.stdout
