"""Weights of torchao in safetensors files: tensors, and descriptions in the metadata.

Source: torchao 0.18, `prototype/safetensors/safetensors_support.py`. `X.weight` is stored as `X._weight_qdata`,
`X._weight_scale` and others; JSON metadata name the tensor class; unknown classes are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hybridlm.quantised.schemes import QuantisedTensor
from hybridlm.quantised.shapes import ADVICE, FLOATS, Mismatch, Tensors
from ir_passes.files.strict_json import parse_json

PART = re.compile(r"(?:(.*)\.)?_([^.]+?)_(qdata|scale_and_zero|per_tensor_scale|act_pre_scale|scale|zero_point)")
"""Tensor of a weight: module, parameter, and kind of tensor."""
UNUSED = re.compile(r"(?:.*\.)?_[^.]+_act_(quant_scale|quant_zero_point|per_tensor_scale)")
"""Tensors for activations, which are not quantised here."""
MAX_DESCRIPTION = 1 << 16
"""Characters of a weight's metadata; the library's have fewer than 1000."""
_REFUSED: Mapping[str, str] = {
    "Int4TilePackedTo4dTensor": "4-bit integers in the tiles of a GPU kernel (tile_packed_to_4d)",
    "Int4PreshuffledTensor": "4-bit integers in the order of a GPU kernel (preshuffled)",
    "Int4PlainInt32Tensor": "4-bit integers in the words of XPU and NPU (plain_int32)",
    "MXTensor": "MX floats",
    "NVFP4Tensor": "NVFP4",
}
_FLOAT8 = frozenset({"fp8-tensor", "fp8-channel", "fp8-block"})
_CONFIGS: Mapping[str, frozenset[str]] = {
    "Float8WeightOnlyConfig": _FLOAT8,
    "Float8DynamicActivationFloat8WeightConfig": _FLOAT8,
    "Int8WeightOnlyConfig": frozenset({"int8"}),
    "Int8DynamicActivationInt8WeightConfig": frozenset({"int8"}),
    "IntxWeightOnlyConfig": frozenset({"int8"}),
    "Int8DynamicActivationIntxWeightConfig": frozenset({"int8"}),
    "Int4WeightOnlyConfig": frozenset({"int4-affine"}),
    "Float8DynamicActivationInt4WeightConfig": frozenset({"int4-affine"}),
}
"""Configuration class -> schemes; otherwise tensors decide."""


def schemes_of(settings: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the schemes in `quantization_config`; None for any."""
    kind = settings.get("quant_type")
    default = kind.get("default") if isinstance(kind, dict) else None
    return _CONFIGS.get(str(default.get("_type"))) if isinstance(default, dict) else None


Sizes = tuple[int, ...] | None
"""Sizes in a weight's metadata; None if not described."""


def torchao_tensor(tensors: Tensors, weight: str, metadata: Mapping[str, str]) -> QuantisedTensor:
    """Return the weight that tensors of torchao make.

    Args:
        tensors: roles "codes", "scale", "zero" and "input scale".

    Raises:
        Mismatch: they make none, or an unknown class.
    """
    kind, block, shape = _description(weight, metadata)
    if kind in _REFUSED:
        raise Mismatch(f"{weight}: {_REFUSED[kind]} of torchao ({kind}), which is not implemented: {ADVICE}")
    if kind not in _READERS:
        expected = ", ".join(_READERS)
        raise Mismatch(f"{weight}: expected a tensor of torchao of {expected}, found {kind!r}: {ADVICE}")
    if "input scale" in tensors.members:
        name = tensors.members["input scale"]
        raise Mismatch(f"{name}: a scale of input columns, which is not implemented: {ADVICE}")
    if "scale" not in tensors.members:
        raise Mismatch(f"{tensors.members['codes']}: expected a scale beside it, found none")
    return _READERS[kind](tensors, block, shape)


def _float8(tensors: Tensors, block: Sizes, _: Sizes) -> QuantisedTensor:
    tensors.expect("codes", {"F8_E4M3"})
    tensors.expect("scale", FLOATS)
    shape = tensors.matrix()
    _expect_blocks(tensors, block, shape)
    if block is not None and not (block[-2] in (1, shape[-2]) and block[-1] == shape[-1]):
        tensors = replace(tensors, hints=replace(tensors.hints, block=block[-2:], block_is_said=True))
    return tensors.float8()


def _int8(tensors: Tensors, block: Sizes, _: Sizes) -> QuantisedTensor:
    tensors.expect("codes", {"I8"})
    tensors.expect("scale", FLOATS)
    shape = tensors.matrix()
    _expect_blocks(tensors, block, shape)
    return tensors.integers("int8", shape, 8)


def _int4(tensors: Tensors, block: Sizes, described: Sizes) -> QuantisedTensor:
    tensors.expect("codes", {"I8", "U8"})
    *lead, rows, stored = tensors.matrix()
    shape = (*lead, rows, 2 * stored)
    if described is not None and described != shape:
        raise Mismatch(f"{tensors.members['codes']}: {list(shape)} codes, its metadata says {list(described)}")
    groups = tensors.of("scale").shape[-2] if len(tensors.of("scale").shape) == len(shape) else 0
    if not groups or shape[-1] % groups:
        raise Mismatch(f"{tensors.members['scale']}: {groups} groups do not divide {shape[-1]} columns")
    if block is not None and block != (*(1 for _ in shape[:-1]), shape[-1] // groups):
        raise Mismatch(f"{tensors.members['scale']}: {groups} groups, its metadata says {list(block)}")
    if "zero" not in tensors.members:
        raise Mismatch(f"{tensors.members['codes']}: expected _zero_point beside it, found none")
    for role in ("scale", "zero"):
        tensors.expect(role, FLOATS)
        tensors.expect_shape(role, [*lead, groups, rows])
    return tensors.made("int4-affine", shape, 4, groups)


_READERS = {"Float8Tensor": _float8, "Int8Tensor": _int8, "IntxUnpackedToInt8Tensor": _int8, "Int4Tensor": _int4}


def _expect_blocks(tensors: Tensors, block: Sizes, shape: tuple[int, ...]) -> None:
    """Check the scale's shape; a block has one scale."""
    if block is None:
        return
    if len(block) != len(shape):
        raise Mismatch(f"{tensors.members['codes']}: {list(shape)} codes, its metadata says {list(block)}")
    blocks = [-(-size // part) for size, part in zip(shape, block, strict=True)]
    tensors.expect_shape("scale", blocks, *([[], [1]] if set(blocks) == {1} else []))


def _description(weight: str, metadata: Mapping[str, str]) -> tuple[str, Sizes, Sizes]:
    """Return a weight's torchao class, the sizes of a block, and its shape."""
    text = metadata.get(weight)
    if text is None:
        raise Mismatch(f"{weight}: tensors of torchao, but the metadata of the file does not describe it")
    if len(text) > MAX_DESCRIPTION:
        raise Mismatch(f"{weight}: expected metadata of at most {MAX_DESCRIPTION} characters, found {len(text)}")
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise Mismatch(f"{weight}: expected metadata that is a JSON object, but it cannot be read: {error}") from error
    data = fields.get("_data") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or not isinstance(data, dict):
        raise Mismatch(f"{weight}: expected metadata with _type and _data, found {text[:120]}")
    return str(fields.get("_type"))[:80], _sizes(weight, data, "block_size"), _sizes(weight, data, "shape")


def _sizes(weight: str, data: Mapping[str, Any], key: str) -> Sizes:
    sizes = data.get(key)
    if sizes is None:
        return None
    if not isinstance(sizes, list) or len(sizes) > 3 or not all(type(n) is int and 0 < n < 2**40 for n in sizes):
        raise Mismatch(f"{weight}: expected metadata with {key} of at most three sizes, found {str(sizes)[:120]}")
    return tuple(sizes)
