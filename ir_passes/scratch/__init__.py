"""Scratch of a step before fusion: live ranges, offsets, verifier.

Imports `contract`, `jaxpr` and `targets`. Begin with `liveness` and `planner`.
"""
