"""Rows of pools: the state of sequences on the device, the holder of each row, copies of rows and cached buffers.

Imports steps and devices. Begin with `pool`; `parts` divides a row into fixed-size state and the KV cache that grows.
"""
