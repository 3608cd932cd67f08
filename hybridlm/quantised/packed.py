"""Quantised weights as arrays in memory: codes and scales by row (`QuantisedWeight`)."""

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Shaped

from hybridlm.quantised.codes import awq_integers, packed_integers
from hybridlm.quantised.formulas import LLM_INT8
from hybridlm.quantised.schemes import QuantisedTensor, Read
from models.ops.quantised_codes import Codes

MIN_GROUP = 8
"""Columns of the narrowest packed groups: narrower scales take as much memory as numbers."""


@dataclass(frozen=True)
class PackedForm:
    """Form of a packed weight, equal for all parts of a parameter.

    Attributes:
        inputs: entries of a row.
        groups: scales of a row.
        has_matrix_scale: the whole matrix has a scale, too.
        zero: dtype of zero points: of the codes, or "float32" if subtracted from the product with the scale.
    """

    kind: Codes
    inputs: int
    groups: int
    scale_dtype: str
    has_matrix_scale: bool
    zero: str | None


PackedArrays = dict[str, np.ndarray]
"""Arrays of a packed weight by role, as in `QuantisedWeight`: codes [.., out, stored], scale and zero [.., out, group],
and whole, the scale of the matrix, float32 [.., out, 1]."""


def packed_arrays(
    codes: np.ndarray, scale: np.ndarray, whole: np.ndarray | None = None, zero: np.ndarray | None = None
) -> PackedArrays:
    arrays = {"codes": codes, "scale": scale, "whole": whole, "zero": zero}
    return {role: array for role, array in arrays.items() if array is not None}


def codes_dtype(kind: Codes) -> np.dtype:
    return np.dtype("int8" if kind == "int8" else "uint8")


def packed_form(tensor: QuantisedTensor, scale_dtype: str, read: Read) -> PackedForm | None:
    """Return the packed form of a weight; None if it can only be dequantised.

    Args:
        read: for column order and zero points of "int8": most files store trivial ones.
    """
    *_, columns = tensor.shape
    scheme = tensor.scheme
    stored = {"F32": "float32", "F16": "float16"}.get(scale_dtype, "bfloat16")
    zero = "zero" in tensor.parts
    if tensor.groups is not None and "order" in tensor.parts:
        order = read(tensor.parts["order"])
        if columns % tensor.groups or (order != np.arange(columns) // (columns // tensor.groups)).any():
            return None
    if scheme in ("nf4", "fp4") or tensor.bits not in (4, 8):
        return None
    if scheme == "int8" and zero:
        zero = bool(read(tensor.parts["zero"]).any())
    if scheme == "gptq" and tensor.bits != 4:
        return None
    if scheme == "fp8-block":
        group = tensor.block[1] if columns % tensor.block[1] == 0 else math.gcd(tensor.block[1], columns)
        group = columns if columns <= tensor.block[1] else group
    elif scheme in ("fp8-channel", "fp8-tensor"):
        group = columns
    elif scheme in ("mxfp8", "mxfp4"):
        group = 32
    elif scheme == "nvfp4":
        group = 16
    else:
        assert tensor.groups is not None
        group = columns // tensor.groups
    four = scheme in ("nvfp4", "mxfp4", "gptq", "awq", "int4-affine") or (scheme == "int-packed" and tensor.bits == 4)
    if group < MIN_GROUP or (four and columns % 2):
        return None
    integers = scheme in ("int8", "int-packed", "gptq", "awq", "llm-int8", "int4-affine")
    kind = ("int4" if four else "int8") if integers else ("e2m1" if four else "e4m3")
    zeros = "float32" if scheme == "int4-affine" else codes_dtype(kind).name
    has_matrix_scale = scheme in ("nvfp4", "llm-int8")
    return PackedForm(kind, columns, columns // group, stored, has_matrix_scale, zeros if zero else None)


def pack(tensor: QuantisedTensor, read: Read, form: PackedForm) -> PackedArrays:
    """Return a weight in its packed form; raises DequantiseError unless it is finite."""
    *lead, rows, columns = tensor.shape
    stored = read(tensor.parts["codes"])
    scale_type = np.dtype(ml_dtypes.bfloat16 if form.scale_dtype == "bfloat16" else form.scale_dtype)
    if form.kind == "e4m3":
        tensor.require_e4m3(stored)
    if tensor.scheme in ("gptq", "awq"):
        scale = np.ascontiguousarray(tensor.scales(read).T).astype(scale_type)
        if tensor.scheme == "gptq":
            codes = packed_integers(np.ascontiguousarray(stored.T), 4, columns)
            zero = tensor.gptq_zero_codes(read)
        else:
            codes, zero = awq_integers(stored).T, awq_integers(read(tensor.parts["zero"])).T
        return packed_arrays(pairs(codes), scale, None, np.ascontiguousarray(zero))
    if tensor.scheme == "nvfp4":
        scale = tensor.scales(read)
        matrix_scale = tensor.whole(read)
        # XLA would multiply by the reciprocal.
        matrix_scale = np.float32(1) / matrix_scale if tensor.divided else matrix_scale
        return packed_arrays(stored, scale.astype(scale_type), np.broadcast_to(matrix_scale, (*lead, rows, 1)))
    if tensor.scheme == "int4-affine":
        scale = np.swapaxes(tensor.scales(read), -1, -2).astype(scale_type)
        # Signed 4-bit codes with an offset of 8 have another first bit.
        return packed_arrays(stored.view(np.uint8) ^ np.uint8(0x88), scale, None, tensor.offsets(read))
    scale = tensor.scales(read)
    if tensor.scheme == "llm-int8":
        factor = np.broadcast_to(LLM_INT8, (*lead, rows, 1))
        return packed_arrays(stored, scale[..., None].astype(scale_type), factor)
    if tensor.scheme == "fp8-block":
        height, width = tensor.block
        scale = scale.reshape(*lead, -(-rows // height), -(-columns // width))
        scale = np.repeat(scale, height, axis=-2)[..., :rows, :]
        group = columns // form.groups
        # A cut last block makes narrower groups that divide all blocks.
        scale = scale if group == columns else np.repeat(scale, width // group, axis=-1)[..., : form.groups]
    elif tensor.scheme == "fp8-tensor":
        scale = np.broadcast_to(scale.reshape(*lead, 1, 1) if scale.size > 1 else scale.reshape(()), (*lead, rows, 1))
    else:
        scale = tensor.by_rows(scale)
    scale = np.ascontiguousarray(scale.astype(scale_type))
    if tensor.scheme == "int8":
        zero = None if form.zero is None else np.ascontiguousarray(tensor.by_rows(read(tensor.parts["zero"])))
        return packed_arrays(stored, scale, None, zero)
    if tensor.scheme != "int-packed":
        return packed_arrays(stored.view(np.uint8) if form.kind == "e2m1" else stored, scale)
    zero = None
    if "zero" in tensor.parts:
        zero = tensor.zero_codes(read)
    stream = np.ascontiguousarray(stored).view(np.uint8)
    if tensor.bits == 4:
        return packed_arrays(stream[..., : columns // 2], scale, None, zero)
    # Unsigned with an offset of 128 is signed with the first bit turned.
    signed = (stream[..., :columns] ^ 0x80).view(np.int8)
    return packed_arrays(signed, scale, None, None if zero is None else (zero ^ 0x80).view(np.int8))


def pairs(codes: Shaped[np.ndarray, "rows columns"]) -> Shaped[np.ndarray, "rows half"]:
    """Pack 4-bit codes, two per byte, even columns in the low half."""
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
