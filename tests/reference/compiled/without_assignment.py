"""Executables that do not give out their buffer assignment, as those of every backend but the CPU's."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from ir_passes.compile import buffer_assignment

SIZES = ("temp", "argument", "output", "alias")


class WithoutAssignment:
    """A compiled program whose memory analysis has sizes alone."""

    def __init__(self, compiled: jax.stages.Compiled):
        self._compiled = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args)

    def memory_analysis(self) -> Any:
        known: Any = self._compiled.memory_analysis()
        sizes = {f"{name}_size_in_bytes": getattr(known, f"{name}_size_in_bytes") for name in SIZES}
        return SimpleNamespace(serialized_buffer_assignment_proto=b"", **sizes)


def hide_assignments(
    monkeypatch: pytest.MonkeyPatch, written: Callable[[Path, dict[str, Any]], None] = lambda *_: None
) -> list[dict[str, Any]]:
    """Hide the buffer assignment of every executable from now on, so that every platform is asked for a dump.

    Args:
        written: is given the folder and the options of each compilation with a dump after XLA has written it.

    Returns:
        The options of every compilation, as they come.
    """
    compile, seen = jax.stages.Lowered.compile, list[dict[str, Any]]()

    def hiding(self: jax.stages.Lowered, compiler_options: dict[str, Any] | None = None) -> Any:
        options = compiler_options or {}
        seen.append(options)
        made = compile(self, compiler_options)
        if buffer_assignment.FOLDER in options:
            written(Path(options[buffer_assignment.FOLDER]), options)
        return WithoutAssignment(made)

    monkeypatch.setattr(jax.stages.Lowered, "compile", hiding)
    monkeypatch.setattr(buffer_assignment, "GIVEN_OUT", frozenset())
    return seen


def erase(folder: Path, options: dict[str, Any] | None = None) -> None:
    """Delete what XLA has written."""
    for path in folder.iterdir():
        path.unlink()
