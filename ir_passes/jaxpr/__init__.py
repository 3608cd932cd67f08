"""JAX's intermediate representation; only this folder touches it. Begin with `ir`.

Passes use `ir`, `primitives` (classes of primitives) and `rewriting` (new equations).
"""

from ir_passes.jaxpr import ir as ir
from ir_passes.jaxpr import primitives as primitives
from ir_passes.jaxpr import rewriting as rewriting
