"""The transfer functions (rules) of the lane proof, one for each of JAX's primitives.

`proof.lane_proof` imports this package; the package imports `proof.site` and its dependencies. Begin with `all`, which
fills the table of `proof.registry`. `addressing` interprets indices.
"""
