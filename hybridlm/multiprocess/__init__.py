"""Processes that run one model together: joining, heartbeats, broadcasts and failures.

Imports `devices`. Begin with `decisions`: the commands and decisions that make every scheduler run the same steps;
`messages` is their wire format, `process_group` checks that programs and operands are equal.
"""
