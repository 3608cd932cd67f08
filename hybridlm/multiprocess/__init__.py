"""Processes that run one model together: joining, heartbeats, broadcasts and failures.

Begin with `decisions`, which make every scheduler run the same steps; `process_group` checks that programs and operands
are equal.
"""
