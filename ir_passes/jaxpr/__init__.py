"""JAX's intermediate form, the only folder that touches it, and helpers that know programs and no contracts.

Imports nothing of ir_passes. Begin with `ir`; `primitives` is the table of primitives and their classes; `jax_private`
has what JAX keeps private.
"""
