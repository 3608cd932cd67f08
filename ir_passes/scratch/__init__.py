"""Scratch of a step: live ranges, a plan of offsets in one arena, its independent verifier and an executor.

Imports `contract` and `jaxpr`. Begin with `liveness` and `plan`.
"""
