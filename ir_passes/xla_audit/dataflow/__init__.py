"""Live ranges and bytes of a compiled program's values, and hazards of in-place operations.

A part of `xla_audit` that only `xla_audit` imports; it imports `xla_audit.program`. Begin with `values`; `in_place`
checks the operations that write results over operands, by the rules of each XLA backend.
"""

from ir_passes.xla_audit.dataflow.in_place import Hazard, in_place_hazards
from ir_passes.xla_audit.dataflow.values import LiveValue, LiveValues, live_values

__all__ = ["Hazard", "LiveValue", "LiveValues", "in_place_hazards", "live_values"]
