"""Measured dependence: operands are changed, and bits are compared."""

from ir_passes.measure.dependence import Dependence, measured_dependence
from ir_passes.measure.unaccepted import Unaccepted, unaccepted_reach

__all__ = ["Dependence", "Unaccepted", "measured_dependence", "unaccepted_reach"]
