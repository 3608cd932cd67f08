"""Scratch of a step before fusion: live ranges, plan and its check. Begin with `liveness` and `planner`."""
