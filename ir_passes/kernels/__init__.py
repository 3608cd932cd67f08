"""Pallas kernels as plain programs, so the lane proof can read them.

Imports `jaxpr`. Begin with `expanded`, then `program`, the loops over a kernel's grid; `blocks` reads block mappings,
`body` rewrites loads and stores as slices and updates, `memory` has the primitives that plain programs need besides.
"""

from ir_passes.kernels.expanded import ReadKernels, read_kernels
from ir_passes.kernels.memory import UnreadableKernel
from ir_passes.kernels.program import kernel_program

__all__ = ["ReadKernels", "UnreadableKernel", "kernel_program", "read_kernels"]
