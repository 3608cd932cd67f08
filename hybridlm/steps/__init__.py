"""Step functions over all lanes, their inputs and their contract.

Begin with `operands`, `structure` and `contract`, then `generate`.
"""
