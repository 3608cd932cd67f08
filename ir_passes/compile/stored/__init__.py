"""Compiled steps on disk, by a key of everything that makes a step.

Begin with `executable_store`.
"""

from ir_passes.compile.stored.entry_file import Entry
from ir_passes.compile.stored.executable_store import ExecutableStore
from ir_passes.compile.stored.stored_step import StoredStep, describe, restore

__all__ = ["Entry", "ExecutableStore", "StoredStep", "describe", "restore"]
