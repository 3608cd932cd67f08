"""The lane proof: an abstract interpretation of a step's jaxpr that finds the owner of every element.

Imports `contract` and `jaxpr`. Begin with `lane_proof`, then `owners` and `values`, the lattice; `site` interprets
the equations, `prover` holds the state of an interpretation, `rules` has one transfer function per primitive,
`dim_names` proves the order of a pool's dimensions. Layers that occur again are interpreted once: `runs`, `repeats`.
"""
