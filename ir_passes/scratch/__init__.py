"""Scratch of a step before fusion: live ranges, offsets in one arena, offset verifier.

Imports `contract`, `jaxpr` and `targets`. Begin with `liveness` and `planner`.
"""
