"""Rows of pools: the state of sequences on the device, who holds each row, and how rows are copied and kept.

Imports steps and devices. Begin with `pool`; `parts` divides a row into what has one size and the KV cache that grows.
"""
