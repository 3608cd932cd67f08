"""Quantised weights as arrays in memory: codes and scales by row (`QuantisedWeight`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Shaped

from hybridlm.quantised.codes import awq_integers, packed_integers
from hybridlm.quantised.formulas import LLM_INT8
from hybridlm.quantised.schemes import INTEGERS, QuantisedTensor, Read
from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes

_KINDS: Mapping[str, Codes] = {
    "nvfp4": "e2m1", "mxfp4": "e2m1", "int8": "int8", "int-packed": "int8", "llm-int8": "int8", "gptq": "int4",
    "awq": "int4", "int4-affine": "int4",
}  # fmt: skip
"""Scheme -> its codes in memory, of integers with 8 bits; others have E4M3."""
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

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the arrays."""
        roles = {"codes": True, "scale": True, "whole": self.has_matrix_scale, "zero": self.zero is not None}
        return tuple(role for role, present in roles.items() if present)


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
    # Old files have zero points of floats, too, all of them zeros.
    zero = "zero" in tensor.parts and scheme in INTEGERS
    if tensor.groups is not None and "order" in tensor.parts:
        order = read(tensor.parts["order"])
        if columns % tensor.groups or (order != np.arange(columns) // (columns // tensor.groups)).any():
            return None
    if scheme in ("nf4", "fp4") or tensor.bits not in (4, 8) or (scheme == "gptq" and tensor.bits != 4):
        return None
    if scheme == "int8" and zero:
        zero = bool(read(tensor.parts["zero"]).any())
    group = tensor.group or columns // (tensor.groups or 1)
    if columns % group:
        group = math.gcd(group, columns)  # divides a cut last block, too
    kind = _KINDS.get(scheme, "e4m3")
    if scheme == "int-packed" and tensor.bits == 4:
        kind = "int4"
    if group < MIN_GROUP or (kind in TWO_IN_A_BYTE and columns % 2):
        return None
    zeros = "float32" if scheme == "int4-affine" else codes_dtype(kind).name
    has_matrix_scale = scheme in ("nvfp4", "llm-int8")
    return PackedForm(kind, columns, columns // group, stored, has_matrix_scale, zeros if zero else None)


def pack(tensor: QuantisedTensor, read: Read, form: PackedForm) -> PackedArrays:
    """Return a weight in its packed form; raises DequantiseError unless it is finite."""
    *lead, rows, columns = tensor.shape
    stored = read(tensor.parts["codes"])
    if form.kind == "e4m3":
        tensor.require_e4m3(stored)
    scale, zero = tensor.row_scales(read), None if form.zero is None else tensor.zeros(read)
    matrix_scale = None
    group = columns // form.groups
    if tensor.scheme == "fp8-block" and group < columns:
        # A cut last block makes narrower groups that divide all blocks.
        scale = np.repeat(scale, tensor.block[1] // group, axis=-1)[..., : form.groups]
    match tensor.scheme:
        case "gptq":
            codes = pairs(packed_integers(np.ascontiguousarray(stored.T), 4, columns))
        case "awq":
            codes = pairs(awq_integers(stored).T)
        case "int4-affine":
            # Signed 4-bit codes with an offset of 8 have another first bit.
            codes, zero = stored.view(np.uint8) ^ np.uint8(0x88), tensor.offsets(read)
        case "int-packed":
            codes = np.ascontiguousarray(stored).view(np.uint8)[..., : columns * tensor.bits // 8]
            if tensor.bits == 8:
                # Unsigned with an offset of 128 is signed with the first bit turned.
                codes = (codes ^ np.uint8(0x80)).view(np.int8)
                zero = None if zero is None else (zero ^ np.uint8(0x80)).view(np.int8)
        case "mxfp4":
            codes = stored.view(np.uint8)
        case _:
            codes = stored
    if tensor.scheme == "nvfp4":
        matrix_scale = tensor.whole(read)
        # XLA would multiply by the reciprocal.
        matrix_scale = np.float32(1) / matrix_scale if tensor.divided else matrix_scale
    elif tensor.scheme == "llm-int8":
        matrix_scale = LLM_INT8
    scale_type = np.dtype(ml_dtypes.bfloat16 if form.scale_dtype == "bfloat16" else form.scale_dtype)
    if matrix_scale is not None:
        matrix_scale = np.broadcast_to(matrix_scale, (*lead, rows, 1))
    return packed_arrays(codes, np.ascontiguousarray(scale.astype(scale_type)), matrix_scale, zero)


def pairs(codes: Shaped[np.ndarray, "*row column"]) -> Shaped[np.ndarray, "*row half"]:
    """Pack 4-bit codes, two per byte, even columns in the low half."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
