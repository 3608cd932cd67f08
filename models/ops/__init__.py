"""Array operations: the delta rule and SSD in token and chunked form, matrix products, layouts for XLA.

Imports `state` and `sharding`. Begin with `recurrence`, `delta_rule`, `ssd` and `linear`.
"""
