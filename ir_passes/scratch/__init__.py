"""Scratch of a step before fusion: live ranges, plan, verifier. Begin with `liveness` and `planner`."""
