"""Transfer functions (rules) of the lane proof, one for each of JAX's primitives.

Begin with `all`, which fills the table of `proof.registry`; `addressing` interprets indices.
"""
