"""The rows and tokens that an index selects, by slots, page tables or tokens.

Begin with `access`, the common form of gather, scatter and dynamic slices; `pool_rows` checks reads and writes of
pools.
"""
