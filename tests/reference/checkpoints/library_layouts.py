"""Matrices as bitsandbytes and torchao store them, by their formulas in float64.

Each function returns the tensors of a matrix, with suffixes after the name of its module, and exact numbers.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

Stored = tuple[str, np.ndarray]
Made = tuple[dict[str, Stored], np.ndarray]
GOLDEN = Path(__file__).resolve().parents[2] / "golden_matrices"
TABLES = {kind: load_file(GOLDEN / f"{kind}.safetensors")["layer.weight.quant_map"] for kind in ("nf4", "fp4")}
"""Values of 4-bit codes, as the library stores them."""
BLOCK, NESTED_BLOCK = 24, 16
DESCRIPTION = "JSON"
"""Dtype of an entry that belongs to the metadata of the file."""


def text(fields: dict[str, object]) -> np.ndarray:
    return np.frombuffer(json.dumps(fields).encode(), np.uint8)


def four_bits(weight: np.ndarray, kind: str, nested: bool = False) -> Made:
    """Quantise blocks of consecutive numbers to a table's nearest values; the last may be cut."""
    count, table = weight.size, TABLES[kind].astype(np.float64)
    blocks = [weight.reshape(-1)[start : start + BLOCK] for start in range(0, count, BLOCK)]
    scale = np.array([np.abs(block).max() for block in blocks]).astype(np.float32)
    state: dict[str, object] = {"quant_type": kind, "blocksize": BLOCK, "dtype": "float32", "shape": weight.shape}
    tensors: dict[str, Stored] = {".absmax": ("F32", scale)}
    if nested:
        # Sums and products of few bits, so that every scale is exact in float32.
        outer = np.full(-(-len(scale) // NESTED_BLOCK), 2.0 ** np.ceil(np.log2(scale.max())), np.float32)
        outer[1::2] *= 2
        levels, offset = np.arange(-128, 128) / 128, float(outer[0] / 2)
        factor = np.repeat(outer, NESTED_BLOCK)[: len(scale)].astype(np.float64)
        codes = np.abs(levels[None] * factor[:, None] + offset - scale[:, None]).argmin(-1).astype(np.uint8)
        scale = levels[codes] * factor + offset
        tensors = {".absmax": ("U8", codes), ".nested_absmax": ("F32", outer)}
        tensors[".nested_quant_map"] = ("F32", levels.astype(np.float32))
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": offset}
    codes, exact = np.zeros(count + count % 2, np.uint8), np.zeros(count)
    for index, block in enumerate(blocks):
        place = slice(index * BLOCK, index * BLOCK + len(block))
        values = table * float(scale[index])
        codes[place] = np.abs(values[None] - block[:, None]).argmin(-1)
        exact[place] = values[codes[place]]
    packed = (codes[::2] << 4 | codes[1::2])[:, None]
    tensors |= {"": ("U8", packed), ".quant_map": ("F32", TABLES[kind])}
    tensors[f".quant_state.bitsandbytes__{kind}"] = ("U8", text(state))
    return {f"weight{suffix}": stored for suffix, stored in tensors.items()}, exact.reshape(weight.shape)


def llm_int8(weight: np.ndarray) -> Made:
    """Quantise to 127 levels of the largest magnitude of each row."""
    # Of few bits, so that one product of the formula is rounded.
    largest = np.maximum(np.abs(weight).max(1), 1e-6).astype(ml_dtypes.bfloat16).astype(np.float32)
    codes = np.clip(np.round(weight / largest[:, None] * 127), -127, 127).astype(np.int8)
    tensors: dict[str, Stored] = {"weight": ("I8", codes), "SCB": ("F32", largest)}
    tensors["weight_format"] = ("U8", np.zeros((), np.uint8))
    return tensors, codes * largest.astype(np.float64)[:, None] * float(np.float32(7.874015718698502e-3))


def described(kind: str, data: dict[str, object], **tensors: Stored) -> dict[str, Stored]:
    """Return tensors of torchao with their description."""
    description = {"_type": kind, "_data": data, "_tensor_data_names": list(tensors)}
    named = {f"_weight_{suffix}": stored for suffix, stored in tensors.items()}
    return named | {"weight": (DESCRIPTION, text(description))}


def float8_rows(codes: np.ndarray, scale: np.ndarray, exact: np.ndarray) -> Made:
    """Store codes of E4M3 and a scale for each row."""
    return described(
        "Float8Tensor", {"block_size": [1, codes.shape[1]]}, qdata=("F8_E4M3", codes), scale=("F32", scale)
    ), exact


def int8_groups(weight: np.ndarray, group: int) -> Made:
    """Quantise to 8 bits with a zero point for each group of columns."""
    grouped = weight.reshape(weight.shape[0], -1, group)
    scale = np.maximum((grouped.max(-1) - grouped.min(-1)) / 255, 1e-6).astype(np.float32)
    zero = np.clip(np.round(-128 - grouped.min(-1) / scale), -128, 127)
    codes = np.clip(np.round(grouped / scale[..., None]) + zero[..., None], -128, 127)
    exact = ((codes - zero[..., None]) * scale.astype(np.float64)[..., None]).reshape(weight.shape)
    parts: dict[str, Stored] = {"qdata": ("I8", codes.astype(np.int8).reshape(weight.shape)), "scale": ("F32", scale)}
    parts["zero_point"] = ("I8", zero.astype(np.int8))
    return described("Int8Tensor", {"block_size": [1, group]}, **parts), exact


def int4(weight: np.ndarray, group: int) -> Made:
    """Quantise to 4 bits with an offset for each group of columns."""
    grouped = weight.reshape(weight.shape[0], -1, group)
    scale = np.maximum(np.abs(grouped).max(-1) / 7, 1e-6).astype(ml_dtypes.bfloat16).astype(np.float32)
    # Multiples of the scale, so that the number is rounded once.
    centre = np.round(grouped.mean(-1) / scale).astype(np.float32) * scale
    codes = np.clip(np.round((grouped - centre[..., None]) / scale[..., None]), -8, 7)
    exact = codes * scale.astype(np.float64)[..., None] + centre.astype(np.float64)[..., None]
    nibbles = codes.astype(np.int8).view(np.uint8).reshape(weight.shape) & 15
    packed = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8).view(np.int8)
    parts: dict[str, Stored] = {"qdata": ("I8", packed), "scale": ("F32", np.ascontiguousarray(scale.T))}
    parts["zero_point"] = ("F32", np.ascontiguousarray(centre.T))
    data: dict[str, object] = {"block_size": [1, group], "shape": list(weight.shape)}
    return described("Int4Tensor", data, **parts), exact.reshape(weight.shape)
