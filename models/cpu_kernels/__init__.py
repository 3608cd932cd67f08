"""CPU kernels in C++: sources, build and loading.

Begin with `row_products/row_product.h`: products of few rows. `recurrent_steps`, `conv_steps` and `decode_attention`
run a few tokens, `sampling` chooses a token from logits, `shared` has threads, the processor and sums of vectors. XLA
calls `handlers.cc` for products. `build` compiles the library, `library` checks and registers it. The JAX forms that
define the kernels are in `models.ops`, `models.mixers` and `hybridlm.sampling`. Imports no other folder of the package.
"""

from models.cpu_kernels.library import INSTRUCTIONS, Library, library

__all__ = ["INSTRUCTIONS", "Library", "library"]
