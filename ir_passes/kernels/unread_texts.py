"""Reasons why a kernel is not read; no verdict depends on them."""

from typing import Any


def no_order(result: int, axis: int, size: int) -> str:
    """Return the reason of unordered steps with one block to write."""
    steps = f"the {size} steps of grid axis {axis} write one block"
    order = "nothing says that they run one after the other: compiler_params=pltpu.CompilerParams()"
    return f"result {result}: {steps}, and {order}"


def other_machine(device: Any) -> str:
    """Return why a copy cannot be read: its device or its machine."""
    return f"a copy to or on {'another device' if device is not None else 'a machine that is not said to be a TPU'}"
