"""Arithmetic of products and convolutions in a compiled program, from their dimension numbers."""

import math
from collections.abc import Iterable

from ir_passes.xla_audit import hlo_schema
from ir_passes.xla_audit.program import Array, Instruction
from ir_passes.xla_audit.wire import decode


def multiplies(one: Instruction) -> bool:
    """Whether an instruction is a product or a convolution."""
    return one.opcode in ("dot", "convolution")


def product_flops(one: Instruction, operands: tuple[Array, ...]) -> int:
    """Operations of a product; 0 of anything else, cuBLAS's calls too, whose shapes say too little."""
    if not multiplies(one):
        return 0
    left, right = operands[:2]
    raw = decode(one.attributes, hlo_schema.PRODUCT)
    if one.opcode == "dot":
        summed = raw["dot"]["lhs_contracting"] if raw["dot"] else ()
        return 2 * one.array.count * math.prod(left.dims[dim] for dim in summed)
    dims = raw["convolution"] or hlo_schema.CONVOLUTION.blank
    windows = raw["window"]["dimensions"] if raw["window"] else ()
    met = math.prod(_met(window, left.dims[at]) for window, at in zip(windows, dims["input_spatial"], strict=True))
    features = right.dims[dims["kernel_input_feature"]]
    return 2 * _places(one.array, dims) * features * met


def _places(result: Array, dims: dict[str, int]) -> int:
    """Elements of a convolution's result at one place of its window."""
    return result.dims[dims["output_batch"]] * result.dims[dims["output_feature"]]


def _met(window: dict[str, int], size: int) -> int:
    """Pairs of a place of the window and an element of the operand that meet, along one dimension."""
    base, dilation, stride = (max(window[name], 1) for name in ("base_dilation", "window_dilation", "stride"))
    low, high = window["padding_low"], window["padding_high"]
    padded = low + (size - 1) * base + 1 + high if size else low + high
    reach = (window["size"] - 1) * dilation + 1
    outputs = (padded - reach) // stride + 1 if padded >= reach else 0
    return sum(_inside(range(0, outputs * stride, stride), at * dilation - low, size, base)
               for at in range(window["size"]))  # fmt: skip


def _inside(starts: Iterable[int], offset: int, size: int, base: int) -> int:
    positions = (start + offset for start in starts)
    return sum(0 <= at <= (size - 1) * base and at % base == 0 for at in positions)
