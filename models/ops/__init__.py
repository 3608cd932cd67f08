"""Array operations: recurrences in token and chunked form, row-wise matrix products, layouts that XLA keeps.

Imports `state` and `sharding`. Begin with `delta_rule`, `ssd` and `linear`.
"""
