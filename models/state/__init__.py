"""State of sequences as pytrees; names of dimensions.

Imports `sharding`. Begin with `state`; `shapes` has the names that annotations use, `rows` the rows of lanes, and
`pages` the pages of KV caches.
"""
