"""The transfer functions (rules) of the lane proof, one for each of JAX's primitives.

A part of `proof`, and imported by it. Begin with `registry`, the table; `all` fills it.
"""
