"""Kernels for CPUs in C++: their sources, how they are built and loaded.

Begin with `row_products/row_product.h`; `row_products` holds products of few rows with a weight, plain or packed, by
instruction set, `recurrent_steps`, `conv_steps` and `decode_attention` steps of recurrences, convolutions and attention
of a few tokens in the same way, `sampling` the choice of a token from logits, `shared` what they need: threads, the
processor, sums of vectors. `handlers.cc` is what XLA calls for products. `build` compiles the library, when the package
is installed or by hand; `library` finds and checks it and makes its handlers known to XLA. `models.ops` and
`hybridlm.sampling` call the kernels; the JAX forms that define them are there and in `models.mixers`. Imports nothing
of the rest of the package.
"""

from models.cpu_kernels.library import INSTRUCTIONS, Library, library

__all__ = ["INSTRUCTIONS", "Library", "library"]
