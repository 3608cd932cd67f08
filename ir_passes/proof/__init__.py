"""The lane proof (noninterference): an abstract interpretation of a step's jaxpr that finds the owner of every element.

Imports `contract`, `kernels` and `jaxpr`. Begin with `lane_proof`, then `owners` and `values`, the lattice; `site`
interprets the equations, `prover` holds the state of an interpretation, `registry` the table of transfer functions,
which are in `rules`, one per primitive. `dims` proves the order of a pool's dimensions.
"""
