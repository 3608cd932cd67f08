"""Arithmetic of products and convolutions, from their dimension numbers."""

import math

from ir_passes.xla_audit import hlo_schema
from ir_passes.xla_audit.program import Array, Instruction
from ir_passes.xla_audit.wire import decode


def multiplies(instruction: Instruction) -> bool:
    return instruction.opcode in ("dot", "convolution")


def product_flops(instruction: Instruction, operands: tuple[Array, ...]) -> int:
    """Return the operations of a product or convolution, else 0.

    cuBLAS calls count as 0: their shapes do not determine the product.
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
    # Elements of the result at one window position.
    places = instruction.array.dims[dims["output_batch"]] * instruction.array.dims[dims["output_feature"]]
    return 2 * places * features * contacts


def _met(window: dict[str, int], size: int) -> int:
    """Count pairs of window position and operand element along one dimension."""
    base, dilation, stride = (max(window[name], 1) for name in ("base_dilation", "window_dilation", "stride"))
    low, high = window["padding_low"], window["padding_high"]
    padded = low + (size - 1) * base + 1 + high if size else low + high
    reach = (window["size"] - 1) * dilation + 1
    outputs = (padded - reach) // stride + 1 if padded >= reach else 0
    places = (
        start + position * dilation - low
        for position in range(window["size"])
        for start in range(0, outputs * stride, stride)
    )
    return sum(0 <= place <= (size - 1) * base and place % base == 0 for place in places)
