"""Pallas kernels as plain programs, so the lane proof can read them.

Imports `jaxpr`. Begin with `expanded`, then `program`, the loops over a kernel's grid; `blocks` reads block mappings,
`body` rewrites loads and stores as slices and updates, `copies` has asynchronous copies and compares their places as
terms (`index_terms`), `memory` has the primitives that plain programs need besides.
"""

from ir_passes.kernels.expanded import ReadKernels, read_kernels

__all__ = ["ReadKernels", "read_kernels"]
