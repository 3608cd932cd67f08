"""State of sequences as explicit pytrees: recurrent state, short convolution inputs, KV cache; names of dimensions.

Imports `sharding`. Begin with `state`; `shapes` has the names that annotations use.
"""
