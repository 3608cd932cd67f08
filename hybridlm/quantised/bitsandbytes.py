"""Weights of bitsandbytes: blocks of 4-bit codes (NF4, FP4) and 8-bit rows (LLM.int8).

Source: bitsandbytes 0.50, `QuantState` of `functional.py` and `Linear8bitLt` of `nn/modules.py`. A block of 4-bit codes
may span two rows; shape, block size and form of scales are JSON in the bytes of a tensor.
"""

import math
from collections.abc import Mapping
from typing import Any

from hybridlm.quantised.schemes import QuantisedTensor
from hybridlm.quantised.shapes import FLOATS, MAX_ENTRIES, Mismatch, Tensors
from ir_passes.files.strict_json import parse_json

STATE = ".quant_state.bitsandbytes__"
"""Tensor with a weight's description, between the weight's name and its scheme."""
BLOCKS: Mapping[str, str] = {
    "scale": ".absmax",
    "table": ".quant_map",
    "nested scale": ".nested_absmax",
    "nested table": ".nested_quant_map",
}
MAX_STATE = 4096
"""Bytes of a description; the library's have fewer than 300."""
MAX_BLOCK = 1 << 20
_STORAGE = FLOATS | {"U8", "I8"}


def schemes_of(settings: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the schemes in `quantization_config`; None for none."""
    if settings.get("load_in_8bit") is True:
        return frozenset({"llm-int8"})
    kind = settings.get("bnb_4bit_quant_type")
    return frozenset({kind}) if kind in ("nf4", "fp4") and settings.get("load_in_4bit") is True else None


def bitsandbytes_tensor(tensors: Tensors) -> QuantisedTensor:
    """Return the weight that tensors of bitsandbytes make.

    Args:
        tensors: "state" and "codes" with roles of `BLOCKS`, or "codes", "scale" and (not in old files) "format" of
            8-bit rows.
    """
    return _rows(tensors) if tensors.members["scale"].endswith(".SCB") else _blocks(tensors)


def _rows(tensors: Tensors) -> QuantisedTensor:
    tensors.expect("codes", {"I8"})
    tensors.expect("scale", FLOATS)
    shape = tensors.matrix()
    tensors.expect_shape("scale", shape[:-1])
    if "format" in tensors.members:
        name = tensors.members["format"]
        tensors.expect("format", {"U8"})
        tensors.expect_shape("format", [], [1])
        order = int(tensors.read(name).reshape(()))
        if order:
            raise Mismatch(f"{name}: expected 0 (rows), found {order}, an order of old GPU kernels: convert it to rows")
    return tensors.made("llm-int8", shape, 8, 1)


def _blocks(tensors: Tensors) -> QuantisedTensor:
    if "state" not in tensors.members:
        raise Mismatch(f"{tensors.members['codes']}: expected a tensor {STATE}nf4 or fp4 beside it, found none")
    scheme = tensors.members["state"].rpartition("__")[2]
    state = _state(tensors, scheme)
    shape = state.get("shape")
    if not isinstance(shape, list) or len(shape) not in (2, 3) or not all(type(n) is int and n > 0 for n in shape):
        raise Mismatch(f"{tensors.members['state']}: expected shape of two or three sizes, found {shape!r}")
    count, block = math.prod(shape), _size(tensors, state, "blocksize")
    codes = tensors.of("codes")
    tensors.expect("codes", _STORAGE)
    # Codes may be stored as bytes of another dtype, and fill its last number.
    if count > MAX_ENTRIES or codes.end - codes.begin != -(-count // 2):
        raise Mismatch(
            f"{tensors.members['codes']}: expected {-(-count // 2)} bytes for {shape}, found {codes.end - codes.begin}"
        )
    if "table" not in tensors.members:
        raise Mismatch(f"{tensors.members['codes']}: expected a tensor {BLOCKS['table']} beside it, found none")
    tensors.expect("table", {"F32"})
    tensors.expect_shape("table", [16])
    blocks = -(-count // block)
    tensors.expect_shape("scale", [blocks])
    nested = None
    if "nested scale" in tensors.members or "nested table" in tensors.members:
        nested = _nested(tensors, state, blocks)
    else:
        tensors.expect("scale", FLOATS)
    return tensors.made(scheme, tuple(shape), 4, block=(1, block), nested=nested)


def _nested(tensors: Tensors, state: Mapping[str, Any], blocks: int) -> tuple[int, float]:
    for role in ("nested scale", "nested table"):
        if role not in tensors.members:
            raise Mismatch(f"{tensors.members['scale']}: expected a tensor {BLOCKS[role]}, found none")
        tensors.expect(role, {"F32"})
    tensors.expect("scale", {"U8"})
    tensors.expect_shape("nested table", [256])
    block, offset = _size(tensors, state, "nested_blocksize"), state.get("nested_offset")
    tensors.expect_shape("nested scale", [-(-blocks // block)])
    if state.get("nested_dtype", "float32") != "float32":
        raise Mismatch(f"{tensors.members['state']}: expected nested_dtype float32, found {state['nested_dtype']!r}")
    if isinstance(offset, bool) or not isinstance(offset, int | float) or not math.isfinite(offset):
        raise Mismatch(f"{tensors.members['state']}: expected nested_offset, a number, found {offset!r}")
    return block, float(offset)


def _state(tensors: Tensors, scheme: str) -> Mapping[str, Any]:
    name, info = tensors.members["state"], tensors.of("state")
    tensors.expect("state", {"U8"})
    if len(info.shape) != 1 or info.shape[0] > MAX_STATE:
        raise Mismatch(f"{name}: expected at most {MAX_STATE} bytes of JSON, found {list(info.shape)}")
    try:
        state = parse_json(tensors.read(name).tobytes())
    except ValueError as error:
        raise Mismatch(f"{name}: expected a JSON object, but it cannot be read: {error}") from error
    if not isinstance(state, dict) or state.get("quant_type") != scheme:
        raise Mismatch(f"{name}: expected a JSON object with quant_type {scheme!r}, found {str(state)[:120]}")
    return state


def _size(tensors: Tensors, state: Mapping[str, Any], key: str) -> int:
    size = state.get(key)
    if type(size) is not int or not 0 < size <= MAX_BLOCK:
        raise Mismatch(f"{tensors.members['state']}: expected {key} of 1 to {MAX_BLOCK}, found {size!r}")
    return size
