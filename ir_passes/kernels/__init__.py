"""Pallas kernels as plain programs, so that the lane proof goes inside.

Imports `jaxpr`. Begin with `expanded`, then `program`, the loops over a kernel's grid; `blocks` reads how its arrays
are cut, `body` rewrites its loads and stores as slices and updates, `memory` has what plain programs lack.
"""

from ir_passes.kernels.expanded import ReadKernels, read_kernels
from ir_passes.kernels.memory import UnreadableKernel
from ir_passes.kernels.program import kernel_program

__all__ = ["ReadKernels", "UnreadableKernel", "kernel_program", "read_kernels"]
