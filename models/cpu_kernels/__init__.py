"""Kernels for CPUs in C++: their sources, how they are built and loaded.

Begin with `row_product.h`. `build` compiles the library, when the package is installed or by hand; `library` finds and
checks it and makes its handlers known to XLA. `models.ops` calls the kernels, and has the JAX forms that define them.
Imports nothing of the rest of the package.
"""

from models.cpu_kernels.library import INSTRUCTIONS, Library, library

__all__ = ["INSTRUCTIONS", "Library", "library"]
