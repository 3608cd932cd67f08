"""The host's side of a step: holders of rows and pages, labels of rows.

Begin with `slot_owner`.
"""
