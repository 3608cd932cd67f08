"""Quantised checkpoints written from the published formulas in float64, apart from the code under test.

`LAYOUTS` quantises one matrix: the file's tensors and the exact numbers.
`write_quantised` rewrites a plain checkpoint.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from library_layouts import DESCRIPTION, float8_rows, four_bits, int4, int8_groups, llm_int8
from safetensors.numpy import load_file

Stored = tuple[str, np.ndarray]
BLOCK = (24, 20)
GROUP = 8


class Quantised(NamedTuple):
    """Tensors by suffix after the name of the matrix or module, and exact numbers."""

    tensors: dict[str, Stored]
    exact: np.ndarray


def e4m3(code: int) -> float:
    sign, exponent, mantissa = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def e2m1(code: int) -> float:
    sign, exponent, mantissa = -1 if code & 8 else 1, code >> 1 & 3, code & 1
    return sign * (mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


E4M3 = np.array([e4m3(code) for code in range(256)])
E2M1 = np.array([e2m1(code) for code in range(16)])


def nearest(table: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the code with the nearest value for each number."""
    distance = np.abs(np.where(np.isnan(table), np.inf, table) - numbers[..., None])
    return np.argmin(distance, axis=-1).astype(np.uint8)


def rounded(numbers: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers in a stored dtype, and the stored numbers in float64."""
    stored = numbers.astype({"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}[kind])
    return stored, stored.astype(np.float64)


def tiles(shape: tuple[int, ...], block: tuple[int, int]) -> list[tuple[tuple[int, int], tuple[slice, slice]]]:
    return [
        ((i, j), (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])))
        for i in range(-(-shape[0] // block[0]))
        for j in range(-(-shape[1] // block[1]))
    ]


def float8(weight: np.ndarray, block: tuple[int, int], suffix: str, kind: str, form: str) -> Quantised:
    """Quantise to E4M3 codes with a scale for each block."""
    grid = (-(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1]))
    scales, codes, exact = np.zeros(grid), np.zeros(weight.shape, np.uint8), np.zeros(weight.shape)
    for index, place in tiles(weight.shape, block):
        scales[index] = max(np.abs(weight[place]).max() / 448, 1e-6)
    if kind in ("U8", "F8_E8M0"):
        powers = np.ceil(np.log2(scales))
        stored, scales = (powers + 127).astype(np.uint8), 2.0**powers
    else:
        stored, scales = rounded(scales, kind)
    for index, place in tiles(weight.shape, block):
        codes[place] = nearest(E4M3, weight[place] / scales[index])
        exact[place] = E4M3[codes[place]] * scales[index]
    shape = {"grid": grid, "scalar": (), "one": (1,), "row": grid[:1], "rows": grid, "4d": (grid[0], 1, grid[1], 1)}
    return Quantised({"": ("F8_E4M3", codes), suffix: (kind, stored.reshape(shape[form]))}, exact)


def nibbles(codes: np.ndarray) -> np.ndarray:
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


def nvfp4(weight: np.ndarray, divided: bool) -> Quantised:
    matrix_scale = np.float32(np.abs(weight).max() / (6 * 448))
    stored = np.float32(1) / matrix_scale if divided else matrix_scale
    grouped = weight.reshape(weight.shape[0], -1, 16)
    scale = nearest(E4M3, np.maximum(np.abs(grouped).max(-1) / 6 / float(matrix_scale), 2.0**-6))
    factor = E4M3[scale][..., None]
    codes = nearest(E2M1, grouped / factor / float(matrix_scale))
    values = (E2M1[codes] * factor).reshape(weight.shape)
    exact = values / float(stored) if divided else values * float(stored)
    packed = nibbles(codes.reshape(weight.shape))
    if divided:
        tensors = {"_packed": ("U8", packed), "_scale": ("F8_E4M3", scale), "_global_scale": ("F32", stored.reshape(1))}
    else:
        tensors = {"": ("U8", packed), "_scale": ("F8_E4M3", scale), "_scale_2": ("F32", stored.reshape(()))}
    return Quantised(tensors, exact)


def mxfp4(weight: np.ndarray) -> Quantised:
    grouped = weight.reshape(weight.shape[0], -1, 32)
    powers = np.floor(np.log2(np.maximum(np.abs(grouped).max(-1), 1e-9))) - 2
    codes = nearest(E2M1, grouped / 2.0 ** powers[..., None])
    exact = (E2M1[codes] * 2.0 ** powers[..., None]).reshape(weight.shape)
    tensors = {"_packed": ("U8", nibbles(codes.reshape(weight.shape)))}
    return Quantised(tensors | {"_scale": ("U8", (powers + 127).astype(np.uint8))}, exact)


def fp4_experts(weight: np.ndarray, kind: str) -> Quantised:
    """Return MXFP4 with the names of block-wise float8, as in Ling and DeepSeek."""
    tensors, exact = mxfp4(weight)
    codes, powers = tensors["_packed"][1], tensors["_scale"][1]
    return Quantised({"": (kind, codes), "_scale_inv": ("F8_E8M0", powers)}, exact)


def bit_stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return unsigned integers as 32-bit words, one Python integer for each row."""
    words = -(-codes.shape[-1] * bits // 32)
    result = np.zeros((*codes.shape[:-1], words), np.uint32)
    for index in np.ndindex(codes.shape[:-1]):
        stream = sum(int(code) << bits * i for i, code in enumerate(codes[index]))
        result[index] = [stream >> 32 * i & 0xFFFFFFFF for i in range(words)]
    return result.view(np.int32)


def integers(
    weight: np.ndarray, bits: int, group: int, order: np.ndarray | None = None, zeros: bool = False, kind: str = "BF16"
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return unsigned codes, stored scales, zero points, groups of columns, and the exact numbers."""
    rows, columns = weight.shape
    groups = np.arange(columns) // group if order is None else order
    count, half = int(groups.max()) + 1, 1 << (bits - 1)
    scales, zero = np.zeros((rows, count)), np.full((rows, count), half)
    for g in range(count):
        part = weight[:, groups == g]
        scales[:, g] = np.maximum(np.abs(part).max(1), 1e-6) / (half - 0.5)
        if zeros:
            zero[:, g] = np.clip(half + np.round(-part.mean(1) / scales[:, g]), 1, 2 * half - 1)
    stored, scales = rounded(scales, kind)
    codes = np.clip(np.round(weight / scales[:, groups]) + zero[:, groups], 0, 2 * half - 1).astype(np.uint8)
    return codes, stored, zero.astype(np.uint8), groups, (codes.astype(float) - zero[:, groups]) * scales[:, groups]


def packed(weight: np.ndarray, bits: int, group: int, zeros: bool = False, shuffled: bool = False) -> Quantised:
    rows, columns = weight.shape
    order = np.random.default_rng(7).permutation(columns) // group if shuffled else None
    codes, scale, zero, groups, exact = integers(weight, bits, group, order, zeros)
    tensors: dict[str, Stored] = {
        "_packed": ("I32", bit_stream(codes, bits)),
        "_scale": ("BF16", scale),
        "_shape": ("I64", np.array([rows, columns], np.int64)),
    }
    if zeros:
        tensors["_zero_point"] = ("I32", np.ascontiguousarray(bit_stream(np.ascontiguousarray(zero.T), bits).T))
    if shuffled:
        tensors["_g_idx"] = ("I32", groups.astype(np.int32))
    return Quantised(tensors, exact)


def int8(weight: np.ndarray) -> Quantised:
    scale, exact = rounded(np.maximum(np.abs(weight).max(1, keepdims=True), 1e-6) / 127, "F32")
    codes = np.round(weight / exact).astype(np.int8)
    return Quantised({"": ("I8", codes), "_scale": ("F32", scale)}, codes * exact)


def gptq(weight: np.ndarray, version: int, shuffled: bool = False) -> Quantised:
    order = np.random.default_rng(8).permutation(weight.shape[1]) // GROUP if shuffled else None
    codes, scale, zero, groups, exact = integers(weight, 4, GROUP, order, True, "F16")
    tensors: dict[str, Stored] = {
        "qweight": ("I32", np.ascontiguousarray(bit_stream(codes, 4).T)),
        "qzeros": ("I32", bit_stream(np.ascontiguousarray((zero - (version == 1)).T), 4)),
        "scales": ("F16", np.ascontiguousarray(scale.T)),
        "g_idx": ("I32", groups.astype(np.int32)),
    }
    return Quantised(tensors, exact)


def awq(weight: np.ndarray) -> Quantised:
    codes, scale, zero, _, exact = integers(weight, 4, GROUP, None, True, "F16")

    def words(numbers: np.ndarray) -> np.ndarray:
        swapped = numbers.reshape(numbers.shape[0], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return bit_stream(swapped.reshape(numbers.shape[0], -1), 4)

    tensors: dict[str, Stored] = {
        "qweight": ("I32", words(np.ascontiguousarray(codes.T))),
        "qzeros": ("I32", words(np.ascontiguousarray(zero.T))),
        "scales": ("F16", np.ascontiguousarray(scale.T)),
    }
    return Quantised(tensors, exact)


def config_group(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}, "ignore": []}


FP8 = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}
FP8_ONE = {"quant_method": "fp8", "weight_block_size": None}


def modelopt(name: str) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": name}


def bitsandbytes(kind: str) -> dict[str, Any]:
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}


def torchao(kind: str) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_data": {}, "_version": 2}}}


def torchao_float8(weight: np.ndarray) -> Quantised:
    tensors, exact = float8(weight, (1, weight.shape[1]), "_scale", "F32", "rows")
    return Quantised(*float8_rows(tensors[""][1], tensors["_scale"][1], exact))


class Layout(NamedTuple):
    """A storage format for matrices: expected scheme, `quantization_config`, and quantisation.

    `multiple` divides the numbers of rows and columns.
    """

    scheme: str
    config: dict[str, Any]
    quantise: Callable[[np.ndarray], Quantised]
    multiple: tuple[int, int] = (1, 1)


GROUPED = dict(num_bits=4, type="int", strategy="group", group_size=GROUP)
LAYOUTS: Mapping[str, Layout] = {
    "fp8-block-bf16": Layout("fp8-block", FP8, lambda w: float8(w, BLOCK, "_scale_inv", "BF16", "grid")),
    "fp8-block-f32": Layout("fp8-block", FP8, lambda w: float8(w, BLOCK, "_scale_inv", "F32", "grid")),
    "fp8-block-powers": Layout("fp8-block", FP8, lambda w: float8(w, BLOCK, "_scale_inv", "F8_E8M0", "grid")),
    "fp8-ling-experts": Layout("mxfp4",
        FP8 | {"scale_fmt": "ue8m0", "routed_experts_quant_method": "mxfp4", "routed_experts_group_size": 32},
        lambda w: fp4_experts(w, "I8"), (1, 32)),
    "fp8-deepseek-experts": Layout("mxfp4", FP8 | {"expert_dtype": "fp4"}, lambda w: fp4_experts(w, "U8"), (1, 32)),
    "fp8-one": Layout("fp8-tensor", FP8_ONE, lambda w: float8(w, (999, 999), "_scale_inv", "F32", "scalar")),
    "modelopt-fp8": Layout("fp8-tensor", modelopt("FP8"), lambda w: float8(w, (999, 999), "_scale", "F32", "scalar")),
    "modelopt-fp8-rows": Layout("fp8-channel", modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
        lambda w: float8(w, (1, 999), "_scale", "F32", "row")),
    "modelopt-fp8-blocks": Layout("fp8-block", modelopt("fp8_pb_wo"),
        lambda w: float8(w, (128, 128), "_scale", "F32", "4d")),
    "modelopt-mxfp8": Layout("mxfp8", modelopt("MXFP8"), lambda w: float8(w, (1, 32), "_scale", "U8", "grid"), (1, 32)),
    "ct-fp8-rows": Layout("fp8-channel", config_group(num_bits=8, type="float", strategy="channel"),
        lambda w: float8(w, (1, 999), "_scale", "BF16", "rows")),
    "ct-fp8-tensor": Layout("fp8-tensor", config_group(num_bits=8, type="float", strategy="tensor"),
        lambda w: float8(w, (999, 999), "_scale", "BF16", "one")),
    "ct-fp8-block": Layout("fp8-block",
        config_group(num_bits=8, type="float", strategy="block", block_structure=list(BLOCK)),
        lambda w: float8(w, BLOCK, "_scale", "BF16", "grid")),
    "modelopt-nvfp4": Layout("nvfp4", modelopt("NVFP4"), lambda w: nvfp4(w, divided=False), (1, 16)),
    "ct-nvfp4": Layout("nvfp4", config_group(num_bits=4, type="float", strategy="tensor_group", group_size=16),
        lambda w: nvfp4(w, divided=True), (1, 16)),
    "ct-mxfp4": Layout("mxfp4", config_group(num_bits=4, type="float", strategy="group", group_size=32), mxfp4,
        (1, 32)),
    "ct-int4": Layout("int-packed", config_group(**GROUPED), lambda w: packed(w, 4, GROUP), (1, GROUP)),
    "ct-int4-zeros": Layout("int-packed", config_group(**GROUPED), lambda w: packed(w, 4, GROUP, True), (1, GROUP)),
    "ct-int4-order": Layout("int-packed", config_group(**GROUPED), lambda w: packed(w, 4, GROUP, shuffled=True),
        (1, GROUP)),
    "ct-int3": Layout("int-packed", config_group(**GROUPED | {"num_bits": 3}), lambda w: packed(w, 3, GROUP, True),
        (1, GROUP)),
    "ct-int8-packed": Layout("int-packed", config_group(**GROUPED | {"num_bits": 8}), lambda w: packed(w, 8, GROUP),
        (1, GROUP)),
    "ct-int8": Layout("int8", config_group(num_bits=8, type="int", strategy="channel"), int8),
    "gptq": Layout("gptq", {"quant_method": "gptq", "bits": 4}, lambda w: gptq(w, 1), (16, 8)),
    "gptq-v2": Layout("gptq", {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, lambda w: gptq(w, 2), (16, 8)),
    "gptq-order": Layout("gptq", {"quant_method": "gptq"}, lambda w: gptq(w, 1, shuffled=True), (16, 8)),
    "awq": Layout("awq", {"quant_method": "awq", "version": "gemm"}, awq, (8, 8)),
    "nf4": Layout("nf4", bitsandbytes("nf4"), lambda w: Quantised(*four_bits(w, "nf4"))),
    "nf4-nested": Layout("nf4", bitsandbytes("nf4"), lambda w: Quantised(*four_bits(w, "nf4", nested=True))),
    "fp4": Layout("fp4", bitsandbytes("fp4"), lambda w: Quantised(*four_bits(w, "fp4"))),
    "llm-int8": Layout("llm-int8", {"quant_method": "bitsandbytes", "load_in_8bit": True},
        lambda w: Quantised(*llm_int8(w))),
    "torchao-float8": Layout("fp8-channel", torchao("Float8WeightOnlyConfig"), torchao_float8),
    "torchao-int8": Layout("int8", torchao("Int8WeightOnlyConfig"), lambda w: Quantised(*int8_groups(w, GROUP)),
        (1, GROUP)),
    "torchao-int4": Layout("int4-affine", torchao("Int4WeightOnlyConfig"), lambda w: Quantised(*int4(w, GROUP)),
        (1, GROUP)),
}  # fmt: skip


def named(name: str, tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the tensors of a matrix under their names in the file."""
    if not tensors.keys().isdisjoint({"qweight", "weight"}):
        return {name.removesuffix("weight") + suffix: stored for suffix, stored in tensors.items()}
    return {name + suffix: stored for suffix, stored in tensors.items()}


def write_tensors(path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file of any dtypes; descriptions are more metadata."""
    header, end = {}, 0
    described = {name: array.tobytes().decode() for name, (dtype, array) in tensors.items() if dtype == DESCRIPTION}
    tensors = {name: stored for name, stored in tensors.items() if stored[0] != DESCRIPTION}
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header | {"__metadata__": {**(metadata or {}), **described}}).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for _, array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def plain(array: np.ndarray) -> Stored:
    return {np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype("f2"): "F16", np.dtype("f4"): "F32"}[array.dtype], array


def write_quantised(
    source: Path, target: Path, layout: Layout | Callable[[str], Layout | None], config: dict[str, Any] | None = None
) -> tuple[Path, list[str]]:
    """Rewrite a plain checkpoint: `target/quantised`, and `target/plain` with its exact numbers.

    Args:
        source: the checkpoint.
        target: the new folder.
        layout: of every matrix but the embedding, or a function of a weight's name, None for plain.
        config: `quantization_config`, if it differs from the layout's.

    Returns:
        `target`, and the names of the quantised weights; matrices that a layout does not fit stay plain.
    """
    stored = {name: array for file in source.glob("*.safetensors") for name, array in load_file(file).items()}
    fields = json.loads((source / "config.json").read_text())
    quantised, exact, names = {}, {}, []
    for name, array in stored.items():
        chosen = layout(name) if callable(layout) else None if "embed" in name else layout
        fits = array.ndim == 2 and name.endswith("weight")
        if chosen is None or not fits or any(n % m for n, m in zip(array.shape, chosen.multiple, strict=True)):
            quantised[name], exact[name] = plain(array), plain(array)
            continue
        packed = chosen.quantise(array.astype(np.float64))
        quantised |= named(name, packed.tensors)
        exact[name] = ("F32", packed.exact.astype(np.float32))
        names.append(name)
    settings = {"quantization_config": layout.config if isinstance(layout, Layout) else config}
    for folder, tensors, entries in (("quantised", quantised, settings), ("plain", exact, {})):
        (target / folder).mkdir(parents=True)
        write_tensors(target / folder / "model.safetensors", tensors)
        (target / folder / "config.json").write_text(json.dumps(fields | entries))
    return target, names
