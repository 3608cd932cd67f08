"""Step functions over all lanes, their inputs and their contract.

Imports `sampling`. Begin with `operands`, `structure` and `contract`, then `generate`; `score`, `verify` and `hidden`
have the same form.
"""
