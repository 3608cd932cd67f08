"""Step functions over all lanes, their inputs and their contract.

Imports `sampling`. Begin with `operands`, `structure` and `contract`, then `generate`, also of hidden states; `score`
and `verify` have the same form.
"""
