"""State of sequences as explicit pytrees: recurrent state, convolution inputs, KV cache; names of their dimensions.

Imports `sharding`. Begin with `state`; `shapes` has the names that annotations use.
"""
