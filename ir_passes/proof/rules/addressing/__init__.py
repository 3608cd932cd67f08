"""The rows and tokens that an index selects.

Indices are slots, entries of slot maps or page tables, and numbers of packed tokens. `proof.rules` imports this
package; the package imports nothing from it except `rules.survival`. Begin with `access`, the common form of gather,
scatter and dynamic slices. `pool_rows` checks reads and writes of pools.
"""
