"""Pallas kernels as plain programs for the lane proof.

Imports `jaxpr`. Begin with `program`, the loops over a kernel's grid; `blocks` reads block mappings, `body` runs a
kernel's program: `machine` has its loads and stores, at `places` of `references` to memory, `copies` its asynchronous
copies, `index_terms` their places as terms, and `memory` further primitives.
"""

from ir_passes.kernels.expanded import ReadKernels, read_kernels

__all__ = ["ReadKernels", "read_kernels"]
