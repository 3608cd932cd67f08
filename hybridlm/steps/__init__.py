"""Step functions over all lanes, and the contract beside each.

Imports `sampling`. Begin with `structure`, then `generate`; `score` and `verify` have the same form, `operands` are
built on the host for every step.
"""
