"""Arithmetic of products and convolutions, from their dimension numbers."""

import math
from collections.abc import Iterable

from ir_passes.xla_audit import hlo_schema
from ir_passes.xla_audit.program import Array, Instruction
from ir_passes.xla_audit.wire import decode


def multiplies(instruction: Instruction) -> bool:
    """True if an instruction is a product or a convolution."""
    return instruction.opcode in ("dot", "convolution")


def product_flops(instruction: Instruction, operands: tuple[Array, ...]) -> int:
    """Return the operations of a product or convolution, else 0.

    cuBLAS calls count as 0: shapes do not determine their products.
    """
    if not multiplies(instruction):
        return 0
    lhs, rhs = operands[:2]
    raw = decode(instruction.attributes, hlo_schema.PRODUCT)
    if instruction.opcode == "dot":
        summed = raw["dot"]["lhs_contracting"] if raw["dot"] else ()
        return 2 * instruction.array.count * math.prod(lhs.dims[dim] for dim in summed)
    dims = raw["convolution"] or hlo_schema.CONVOLUTION.blank
    windows = raw["window"]["dimensions"] if raw["window"] else ()
    contacts = math.prod(
        _met(window, lhs.dims[dim]) for window, dim in zip(windows, dims["input_spatial"], strict=True)
    )
    features = rhs.dims[dims["kernel_input_feature"]]
    return 2 * _places(instruction.array, dims) * features * contacts


def _places(result: Array, dims: dict[str, int]) -> int:
    """Elements of a convolution's result at one window place."""
    return result.dims[dims["output_batch"]] * result.dims[dims["output_feature"]]


def _met(window: dict[str, int], size: int) -> int:
    """Count pairs of window position and operand element along one dimension."""
    base, dilation, stride = (max(window[name], 1) for name in ("base_dilation", "window_dilation", "stride"))
    low, high = window["padding_low"], window["padding_high"]
    padded = low + (size - 1) * base + 1 + high if size else low + high
    reach = (window["size"] - 1) * dilation + 1
    outputs = (padded - reach) // stride + 1 if padded >= reach else 0
    return sum(_inside(range(0, outputs * stride, stride), position * dilation - low, size, base)
               for position in range(window["size"]))  # fmt: skip


def _inside(starts: Iterable[int], offset: int, size: int, base: int) -> int:
    positions = (start + offset for start in starts)
    return sum(0 <= position <= (size - 1) * base and position % base == 0 for position in positions)
