"""JAX's intermediate representation; only this folder touches it.

Imports nothing of ir_passes. Begin with `ir`; `primitives` is the table of primitives.
"""
