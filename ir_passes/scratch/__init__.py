"""Scratch of a step: live ranges, a plan of offsets in one arena, and its independent verifier.

Imports `contract` and `jaxpr`. Begin with `liveness` and `plan`.
"""
