"""Every rule; an import fills the table."""

from ir_passes.proof import registry
from ir_passes.proof.rules import (
    calls,
    comparisons,
    control,
    elementwise,
    exchanges,
    indexing,
    kernels,
    meshes,
    opaque_calls,
    parts,
    products,
    randomness,
    reductions,
    shapes,
)

RULES = registry.RULES

__all__ = [
    "RULES",
    "calls",
    "comparisons",
    "control",
    "elementwise",
    "exchanges",
    "indexing",
    "kernels",
    "meshes",
    "opaque_calls",
    "parts",
    "products",
    "randomness",
    "reductions",
    "shapes",
]
