"""The host's side of a step: one holder for each row, and a ledger of what each row must hold.

Imports `contract`. Begin with `slot_owner`.
"""
