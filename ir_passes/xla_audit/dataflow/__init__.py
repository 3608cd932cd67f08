"""Live ranges and bytes of the values of a compiled program, and operations that may write into their operands'.

A part of `xla_audit`, and imported by it. Imports its `program`. Begin with `values`; `in_place` judges the operations
whose results share bytes with operands, by the rules of each of XLA's backends.
"""

from ir_passes.xla_audit.dataflow.in_place import Hazard, in_place_hazards
from ir_passes.xla_audit.dataflow.values import LiveValue, LiveValues, live_values

__all__ = ["Hazard", "LiveValue", "LiveValues", "in_place_hazards", "live_values"]
