"""Audit of XLA's program for a step: aliases, pool copies, shared bytes, in-place operations, collectives.

Begin with `audit`; `hlo` reads XLA's module and buffer assignment, `dataflow` computes bytes and live range of each
value.
"""
