"""Processes that run one model together: joining, heartbeats, broadcasts and failures.

Begin with `decisions`: every scheduler runs the same steps.
"""
