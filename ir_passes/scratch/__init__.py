"""Scratch of a step: live ranges, a plan of offsets in one arena, and its independent verifier.

Imports `contract`, `jaxpr` and `targets`. Begin with `liveness` and `plan`.
"""
