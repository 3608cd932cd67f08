"""Every rule; importing this module fills the table."""

from ir_passes.rules import (
    calls,
    control,
    elementwise,
    indexing,
    meshes,
    parts,
    products,
    randomness,
    reductions,
    registry,
    shapes,
)

RULES = registry.RULES

__all__ = [
    "RULES",
    "calls",
    "control",
    "elementwise",
    "indexing",
    "meshes",
    "parts",
    "products",
    "randomness",
    "reductions",
    "shapes",
]
