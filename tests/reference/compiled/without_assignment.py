"""Executables without buffer assignment, as on every backend but CPUs."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from ir_passes.compile import buffer_assignment

SIZES = ("temp", "argument", "output", "alias")


class WithoutAssignment:
    """A compiled program with sizes alone in its memory analysis."""

    def __init__(self, compiled: jax.stages.Compiled):
        self._compiled = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args)

    def memory_analysis(self) -> Any:
        table: Any = self._compiled.memory_analysis()
        sizes = {f"{name}_size_in_bytes": getattr(table, f"{name}_size_in_bytes") for name in SIZES}
        return SimpleNamespace(serialized_buffer_assignment_proto=b"", **sizes)


def hide_assignments(
    monkeypatch: pytest.MonkeyPatch, written: Callable[[Path, dict[str, Any]], None] = lambda *_: None
) -> list[dict[str, Any]]:
    """Hide every executable's buffer assignment, so that platforms are asked for a dump.

    Args:
        written: is given the folder and the options of each compilation with a dump after XLA has written it.

    Returns:
        The options of every compilation, as they come.
    """
    compile, calls = jax.stages.Lowered.compile, list[dict[str, Any]]()

    def hiding(self: jax.stages.Lowered, compiler_options: dict[str, Any] | None = None) -> Any:
        options = compiler_options or {}
        calls.append(options)
        result = compile(self, compiler_options)
        if buffer_assignment.FOLDER in options:
            written(Path(options[buffer_assignment.FOLDER]), options)
        return WithoutAssignment(result)

    monkeypatch.setattr(jax.stages.Lowered, "compile", hiding)
    monkeypatch.setattr(buffer_assignment, "GIVEN_OUT", frozenset())
    return calls


def erase(folder: Path, options: dict[str, Any] | None = None) -> None:
    """Delete XLA's files."""
    for path in folder.iterdir():
        path.unlink()
