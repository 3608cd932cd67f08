"""Scratch of a step before fusion: live ranges (`liveness`), and plans (`planner`)."""
