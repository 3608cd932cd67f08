"""Audit of the program that XLA compiled for a step.

It checks aliases of donated buffers, pool copies, shared bytes, in-place operations and collectives.

Imports `contract` and `jaxpr`. Begin with `audit`; `hlo` reads XLA's module and buffer assignment, `dataflow` computes
the bytes and the live range of each value.
"""
