"""The formulas of quantised weights: exact numbers in float32.

Engines that also quantise activations compute other numbers.
"""

import math

import numpy as np
from jaxtyping import Float32, Integer

from hybridlm.quantised.codes import FP4, NF4, awq_integers, float4_e2m1, float8_e4m3, packed_integers, table_numbers
from hybridlm.quantised.schemes import DequantiseError, QuantisedTensor, Read

LLM_INT8 = np.float32(7.874015718698502e-3)
"""bitsandbytes multiplies "llm-int8" by the scale, then by 1/127."""
_TABLES = {"nf4": NF4, "fp4": FP4}


def dequantise(tensor: QuantisedTensor, read: Read) -> Float32[np.ndarray, "..."]:
    """Return a weight in float32; each product is rounded once.

    Raises:
        DequantiseError: a scale or code that is not finite, or an absent group.
    """
    if tensor.scheme in _TABLES:
        return _tabled(tensor, read)
    numbers, scale, zero = _codes(tensor, read), tensor.row_scales(read), tensor.zeros(read)
    groups = scale.shape[-1]
    width = tensor.block[1] if tensor.scheme == "fp8-block" else numbers.shape[-1] // groups
    group = _group_of_column(tensor, read, groups) if "order" in tensor.parts else None
    if zero is not None:
        _combine(np.subtract, numbers, zero, width, group)
    elif tensor.scheme == "int-packed":
        numbers -= np.float32(1 << (tensor.bits - 1))
    _combine(np.multiply, numbers, scale, width, group)
    if tensor.scheme == "nvfp4":
        (np.divide if tensor.divided else np.multiply)(numbers, tensor.whole(read), out=numbers)
    elif tensor.scheme == "llm-int8":
        numbers *= LLM_INT8
    elif tensor.scheme == "int4-affine":
        _combine(np.subtract, numbers, tensor.offsets(read), width, group)
    return numbers


def _codes(tensor: QuantisedTensor, read: Read) -> Float32[np.ndarray, "*expert out in"]:
    """Return the values of the codes; integers of fewer than 8 bits are unsigned."""
    stored, columns = read(tensor.parts["codes"]), tensor.shape[-1]
    match tensor.scheme:
        case "fp8-block" | "fp8-channel" | "fp8-tensor" | "mxfp8":
            tensor.require_e4m3(stored)
            return float8_e4m3(stored)
        case "nvfp4" | "mxfp4":
            return float4_e2m1(stored.view(np.uint8))
        case "gptq":
            stored = packed_integers(np.ascontiguousarray(stored.T), tensor.bits, columns)
        case "awq":
            stored = awq_integers(stored).T
        case "int-packed":
            stored = packed_integers(stored, tensor.bits, columns)
        case "int4-affine":
            # Signed codes of four bits with an offset of 8 have another first bit.
            stored = packed_integers(stored.view(np.uint8) ^ np.uint8(0x88), 4, columns)
    return stored.astype(np.float32, order="C")


def _combine(
    operation: np.ufunc,
    numbers: Float32[np.ndarray, "*row column"],
    factors: np.ndarray,
    width: int,
    group: Integer[np.ndarray, " column"] | None = None,
) -> None:
    """Combine each column, in place, with the number of its group.

    Args:
        factors: [*row, group].
        width: columns of a group; the last one may be cut.
        group: of each column, if groups are no runs of columns.
    """
    if group is not None:
        operation(numbers, factors[..., group], out=numbers)
        return
    count = numbers.shape[-1] // width
    rest = numbers[..., count * width :]
    grouped = numbers[..., : count * width].reshape(*numbers.shape[:-1], count, width)
    operation(grouped, factors[..., :count, None], out=grouped)
    operation(rest, factors[..., count:], out=rest)


def _group_of_column(tensor: QuantisedTensor, read: Read, groups: int) -> Integer[np.ndarray, " columns"]:
    name = tensor.parts["order"]
    group = read(name)
    if group.size and (group.min() < 0 or group.max() >= groups):
        raise DequantiseError(
            name, f"expected groups 0 to {groups - 1}, found {int(group.min())} to {int(group.max())}"
        )
    return group


def _tabled(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    name, table = tensor.parts["table"], _TABLES[tensor.scheme]
    if not np.allclose(read(name), table, rtol=0, atol=1e-6):
        raise DequantiseError(name, f"expected the table of {tensor.scheme}, found other numbers")
    # The bytes may be stored with another dtype.
    stored = np.ascontiguousarray(read(tensor.parts["codes"])).view(np.uint8).reshape(-1)
    numbers = table_numbers(stored, table, math.prod(tensor.shape))
    _combine(np.multiply, numbers, tensor.scales(read), tensor.block[1])
    return numbers.reshape(tensor.shape)
