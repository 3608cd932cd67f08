"""Some seconds of random traffic; an hour of it is `python scripts/soak.py`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("minutes", ["0.3", pytest.param("1", marks=pytest.mark.long)])
def test_random_traffic(minutes: str, root: Path) -> None:
    command = [sys.executable, str(root / "scripts" / "soak.py"), "--minutes", minutes, "--lanes", "4"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    seen = dict(re.findall(r"^(\S.*?) +(\d+)$", result.stdout, re.MULTILINE))
    assert int(seen["completions"]) > 20 * float(minutes) and int(seen["forced moves"]) > 0, result.stdout
