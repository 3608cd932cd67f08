"""Rules of the lane proof: what each of JAX's primitives does to the ownership of elements.

A part of `proof`, and imported by it. Begin with `registry`, the table; `all` fills it.
"""
