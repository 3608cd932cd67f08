"""Live ranges and bytes of values, and in-place hazards. Begin with `values`."""

from ir_passes.xla_audit.dataflow.in_place import Hazard, in_place_hazards
from ir_passes.xla_audit.dataflow.values import LiveValue, LiveValues, live_values

__all__ = ["Hazard", "LiveValue", "LiveValues", "in_place_hazards", "live_values"]
