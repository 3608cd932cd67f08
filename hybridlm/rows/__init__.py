"""Rows of pools: sequence states on the device, holders, copies and cached buffers.

Imports steps and devices. Begin with `pool`.
"""
