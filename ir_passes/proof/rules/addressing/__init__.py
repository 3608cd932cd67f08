"""The rows and tokens that an index selects, by slots, page tables or tokens.

Begin with `access`; `pool_rows` checks reads and writes of pools.
"""
