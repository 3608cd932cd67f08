"""Every rule; an import fills the table."""

from ir_passes.proof import registry
from ir_passes.proof.rules import (
    calls,
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
MODULES = (
    calls, control, elementwise, exchanges, indexing, kernels, meshes, opaque_calls, parts, products, randomness,
    reductions, shapes,
)  # fmt: skip
