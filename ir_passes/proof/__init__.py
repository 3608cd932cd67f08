"""The lane proof: an abstract interpretation of a step's jaxpr that finds the owner of every element.

Imports `contract` and `jaxpr`. Begin with `lane_proof`, then `owners` and `values`, the lattice; `prover` walks over
the equations, `rules` has one rule per primitive, `dim_labels` proves the order of a pool's dimensions.
"""
