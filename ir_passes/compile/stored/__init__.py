"""Compiled steps on disk, one file for each. The key covers everything that makes a step, so that none is traced again.

A part of `compile`, and imported by none of it. Imports its `compiled_step`, `calling` and `runtime`. Begin with
`executable_store`; `entry_file` is one file of it, `stored_step` what is read from one and called.
"""

from ir_passes.compile.stored.entry_file import Entry
from ir_passes.compile.stored.executable_store import ExecutableStore
from ir_passes.compile.stored.result_structure import NotStorable
from ir_passes.compile.stored.stored_step import StoredStep, describe, restore

__all__ = ["Entry", "ExecutableStore", "NotStorable", "StoredStep", "describe", "restore"]
