"""JAX's intermediate representation: the only folder that touches it, without knowledge of contracts.

Imports nothing of ir_passes. Begin with `ir`; `primitives` is the table of primitives and their classes; `jax_private`
wraps private parts of JAX.
"""
