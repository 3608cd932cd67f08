"""The rows and tokens that an index reaches: by slot, slot map, page table, or number of a packed token.

A part of `proof.rules`, which imports it; imports nothing of them. Begin with `access`, the one form of gather, scatter
and dynamic slices; `pool_rows` judges reads and writes of pools.
"""
