"""State of sequences as pytrees: recurrent state, convolution inputs, KV cache; dimension names.

Imports `sharding`. Begin with `state`; `shapes` has the names that annotations use, `rows` the rows of lanes, and
`pages` the pages of KV caches.
"""
