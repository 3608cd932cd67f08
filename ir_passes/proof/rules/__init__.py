"""The transfer functions (rules) of the lane proof, one for each of JAX's primitives.

A part of `proof`, whose `lane_proof` imports it; imports `proof.site` and what that stands on. Begin with `all`, which
fills the table of `proof.registry`; `addressing` says what an index reaches.
"""
