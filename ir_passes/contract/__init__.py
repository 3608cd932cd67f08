"""Contracts: entries of a step's inputs and outputs (shared, per lane, slot map, pool).

Imports `jaxpr`. Begin with `contract` and `entries`; `declared` has declarations that replace a proof.
"""
