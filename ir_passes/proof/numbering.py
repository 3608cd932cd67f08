"""Value numbers: equal numbers mean equal elements; equal expressions have equal numbers."""

from typing import NewType

Number = NewType("Number", int)
"""The number of a value, or of an expression."""
Version = NewType("Version", int)
"""A version of a pool, or of a part of one."""
Leaf = NewType("Leaf", int)
NONE = Number(0)
"""The value has no number yet."""
