"""CPU kernels in C++: sources, build and loading.

Begin with `row_products/row_product.h`. By instruction set, `row_products` has products of few rows with a plain or
packed weight, `recurrent_steps`, `conv_steps` and `decode_attention` steps of a few tokens; `sampling` chooses a token
from logits, `shared` has threads, the processor and sums of vectors. XLA calls `handlers.cc` for products. `build`
compiles the library at installation or by hand; `library` finds, checks and registers it. `models.ops` and
`hybridlm.sampling` call the kernels; the JAX forms that define them are there and in `models.mixers`. Imports no other
folder of the package.
"""

from models.cpu_kernels.library import INSTRUCTIONS, Library, library

__all__ = ["INSTRUCTIONS", "Library", "library"]
