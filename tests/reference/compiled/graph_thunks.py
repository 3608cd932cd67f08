"""Host operations of a GPU program, from XLA's list of thunks in a folder."""

import re
from pathlib import Path

ASKING_THE_HOST = frozenset({"While", "Conditional"})
"""Thunks that outside of a graph copy a number to the host and wait (xla/backends/gpu/runtime/while_thunk.cc)."""


def thunks_outside_graphs(folder: Path) -> list[str]:
    """Return the kinds of host-run thunks of the program with the longest list."""
    texts = [file.read_text() for file in folder.glob("*thunk_sequence_after_thunk_passes.txt")]
    return re.findall(r"^\d+: k(\w+)", max(texts, key=len), re.MULTILINE)
