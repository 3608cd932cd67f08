"""Rows of pools: sequence states on the device, holders, copies and cached buffers.

Imports steps and devices. Begin with `pool`; `parts` divides a row into fixed-size state and the KV cache that grows.
"""
