"""The stages of a compilation, as `jax.stages` has them: traced, proved, lowered; the last one is `CompiledStep`."""

from ir_passes.compile.isolated import IsolatedStep
from ir_passes.compile.refused_settings import SettingError
from ir_passes.compile.stages import LoweredStep, ProvedStep, TracedStep
from ir_passes.jaxpr.placement import PlacementError, Unplaced

__all__ = [
    "IsolatedStep",
    "LoweredStep",
    "PlacementError",
    "ProvedStep",
    "SettingError",
    "TracedStep",
    "Unplaced",
]
