"""Stages of a compilation, as in `jax.stages`: traced, proved, lowered, `CompiledStep`."""

from ir_passes.compile.isolated import IsolatedStep
from ir_passes.compile.stages import LoweredStep, ProvedStep, TracedStep
from ir_passes.jaxpr.placement import PlacementError, Unplaced
from ir_passes.jaxpr.refused import SettingError

__all__ = ["IsolatedStep", "LoweredStep", "PlacementError", "ProvedStep", "SettingError", "TracedStep", "Unplaced"]
