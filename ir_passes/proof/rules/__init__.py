"""Transfer functions (rules) of the lane proof, one for each of JAX's primitives.

Begin with `all`; `addressing` interprets indices.
"""
