"""The host's side of a step: one holder per row, and a ledger of labels.

Imports `contract`. Begin with `slot_owner`.
"""
