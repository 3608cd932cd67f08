"""Thousands of classified rows, every one in its form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.parametrize("drafts", [[], ["--speculate", "ngram"]], ids=["plain", "drafts"])
def test_every_row_has_its_form(root: Path, drafts: list[str]) -> None:
    command = [sys.executable, root / "scripts" / "demo" / "structured_rows.py", "5000", *drafts]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1].startswith("5,000 rows") and process.stdout.endswith(
        " 0 without their form\n"
    )
