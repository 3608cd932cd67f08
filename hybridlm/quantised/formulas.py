"""The formulas of quantised weights: exact numbers in float32.

Engines that also quantise activations compute other numbers.
"""

import math
from collections.abc import Callable, Mapping

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
    return _FORMULAS[tensor.scheme](tensor, read)


def _fp8(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    codes = read(tensor.parts["codes"])
    tensor.require_e4m3(codes)
    return float8_e4m3(codes)


def _block(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    *lead, rows, columns = tensor.shape
    height, width = tensor.block
    scale = tensor.scales(read).reshape(*lead, -(-rows // height), -(-columns // width))
    # The last block of rows and of columns may be cut.
    scale = np.repeat(scale, width, axis=-1)[..., :columns]
    weight = _fp8(tensor, read)
    for i in range(scale.shape[-2]):
        weight[..., i * height : (i + 1) * height, :] *= scale[..., i : i + 1, :]
    return weight


def _channel(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    weight = _fp8(tensor, read)
    return np.multiply(weight, tensor.scales(read).reshape(*tensor.shape[:-1], 1), out=weight)


def _tensor(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    weight = _fp8(tensor, read)
    lead = tensor.shape[:-2]
    scale = tensor.scales(read)
    return np.multiply(weight, scale.reshape(*lead, 1, 1) if scale.size > 1 else scale.reshape(()), out=weight)


def _by_columns(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    grouped = values.reshape(*scale.shape, -1)
    np.multiply(grouped, scale[..., None], out=grouped)
    return values


def _mxfp4(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    return _by_columns(float4_e2m1(read(tensor.parts["codes"]).view(np.uint8)), tensor.scales(read))


def _nvfp4(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    weight = _by_columns(float4_e2m1(read(tensor.parts["codes"])), tensor.scales(read))
    return (np.divide if tensor.divided else np.multiply)(weight, tensor.whole(read), out=weight)


def _integers(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    """Return `(code - zero) * scale`, with codes offset to be signed."""
    columns = tensor.shape[-1]
    half = np.float32(1 << (tensor.bits - 1))
    stored = read(tensor.parts["codes"])
    scale = tensor.by_rows(tensor.scales(read))
    zero = np.zeros_like(scale)
    if tensor.scheme == "int8":
        codes = stored.astype(np.float32)
        if "zero" in tensor.parts:
            zero = tensor.by_rows(read(tensor.parts["zero"])).astype(np.float32)
    else:
        codes = packed_integers(stored, tensor.bits, columns).astype(np.float32) - half
        if "zero" in tensor.parts:
            zero = tensor.zero_codes(read).astype(np.float32).reshape(scale.shape) - half
    return _grouped_integers(tensor, read, codes, zero, scale)


def _group_of_column(tensor: QuantisedTensor, read: Read, groups: int) -> Integer[np.ndarray, " columns"]:
    name = tensor.parts["order"]
    group = read(name)
    if group.size and (group.min() < 0 or group.max() >= groups):
        raise DequantiseError(
            name, f"expected groups 0 to {groups - 1}, found {int(group.min())} to {int(group.max())}"
        )
    return group


def _gptq(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    codes = packed_integers(np.ascontiguousarray(read(tensor.parts["codes"]).T), tensor.bits, tensor.shape[-1])
    scale = tensor.scales(read).T
    return _grouped_integers(tensor, read, codes, tensor.gptq_zero_codes(read).astype(np.float32), scale)


def _awq(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    codes = awq_integers(read(tensor.parts["codes"])).T
    zero = awq_integers(read(tensor.parts["zero"])).T.astype(np.float32)
    return _grouped_integers(tensor, read, codes, zero, tensor.scales(read).T)


def _grouped_integers(
    tensor: QuantisedTensor, read: Read, codes: np.ndarray, zero: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    numbers = np.ascontiguousarray(codes, np.float32)
    if "order" in tensor.parts:
        group = _group_of_column(tensor, read, scale.shape[-1])
        numbers -= zero[..., group]
        numbers *= scale[..., group]
    else:
        grouped = numbers.reshape(*scale.shape, -1)
        grouped -= zero[..., None]
        grouped *= scale[..., None]
    return numbers


def _tabled(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    name, table = tensor.parts["table"], _TABLES[tensor.scheme]
    if not np.allclose(read(name), table, rtol=0, atol=1e-6):
        raise DequantiseError(name, f"expected the table of {tensor.scheme}, found other numbers")
    # The bytes may be stored with another dtype.
    stored = np.ascontiguousarray(read(tensor.parts["codes"])).view(np.uint8).reshape(-1)
    numbers, scale = table_numbers(stored, table, math.prod(tensor.shape)), tensor.scales(read)
    block = tensor.block[1]
    end = numbers.size // block * block
    blocks = numbers[:end].reshape(-1, block)
    np.multiply(blocks, scale[: len(blocks), None], out=blocks)
    numbers[end:] *= scale[-1]
    return numbers.reshape(tensor.shape)


def _llm_int8(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    numbers = read(tensor.parts["codes"]).astype(np.float32)
    np.multiply(numbers, tensor.scales(read)[..., None], out=numbers)
    return np.multiply(numbers, LLM_INT8, out=numbers)


def _int4_affine(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    scale, offset = np.swapaxes(tensor.scales(read), -1, -2), tensor.offsets(read)
    # Signed codes of four bits with an offset of 8 have another first bit.
    stored = read(tensor.parts["codes"]).view(np.uint8) ^ np.uint8(0x88)
    codes = np.ascontiguousarray(packed_integers(stored, 4, tensor.shape[-1]), np.float32)
    grouped = codes.reshape(*scale.shape, -1)
    grouped *= scale[..., None]
    grouped -= offset[..., None]
    return codes


_FORMULAS: Mapping[str, Callable[[QuantisedTensor, Read], np.ndarray]] = {
    "fp8-block": _block,
    "fp8-channel": _channel,
    "fp8-tensor": _tensor,
    "mxfp8": lambda tensor, read: _by_columns(_fp8(tensor, read), tensor.scales(read)),
    "nvfp4": _nvfp4,
    "mxfp4": _mxfp4,
    "int8": _integers,
    "int-packed": _integers,
    "gptq": _gptq,
    "awq": _awq,
    "nf4": _tabled,
    "fp4": _tabled,
    "llm-int8": _llm_int8,
    "int4-affine": _int4_affine,
}
