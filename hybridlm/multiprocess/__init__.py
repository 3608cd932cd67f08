"""Processes that run one model together: joining, heartbeats, broadcasts of what runs next, and failures.

Imports `devices`. Begin with `process_group`: process 0 decides, the others repeat its calls; `records` is the wire
format.
"""
