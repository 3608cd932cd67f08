"""Scratch of a step before fusion: live ranges, offsets in one arena, and an independent verifier of the offsets.

Imports `contract`, `jaxpr` and `targets`. Begin with `liveness` and `planner`.
"""
