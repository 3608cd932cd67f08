"""The audit of what XLA compiled: donated buffers and their aliases, copies of pools, values on the same bytes,
in-place operations, collectives.

Imports `contract` and `jaxpr`. Begin with `audit`; `hlo` reads XLA's module and buffer assignment, `dataflow` says
which values live on which bytes.
"""
