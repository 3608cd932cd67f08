"""Compiled steps on disk, one file each; the key covers everything that makes a step.

So a warm start traces nothing. A part of `compile` that no other module of it imports. Imports its `compiled_step`,
`calling` and `runtime`. Begin with `executable_store`; `entry_file` is one file of it, `stored_step` a restored step.
"""

from ir_passes.compile.stored.entry_file import Entry
from ir_passes.compile.stored.executable_store import ExecutableStore
from ir_passes.compile.stored.result_structure import NotStorable
from ir_passes.compile.stored.stored_step import StoredStep, describe, restore

__all__ = ["Entry", "ExecutableStore", "NotStorable", "StoredStep", "describe", "restore"]
