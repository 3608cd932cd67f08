"""Processes that run one model together: joining, heartbeats, broadcasts of what runs next, and how all end.

Imports `devices`. Begin with `process_group`: process 0 decides, the others repeat its calls; `records` is what is sent.
"""
