"""Faulty tensors and descriptions of bitsandbytes and torchao are named in the message."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoint import LAYOUTS, Stored, bitsandbytes, named, torchao
from quantised_files import group

from hybridlm.quantised import DequantiseError, contradictions, dequantise, read_settings

MODULE = "model.layers.0.mlp.down_proj"
WEIGHT = f"{MODULE}.weight"
STATE = f"{WEIGHT}.quant_state.bitsandbytes__nf4"
Change = dict[str, Stored | None]


def stored(layout: str, changes: Change | None = None) -> dict[str, Stored]:
    """Return the tensors of a matrix [48, 64], some of them changed; None removes one."""
    tensors = named(WEIGHT, LAYOUTS[layout].quantise(np.random.default_rng(5).normal(size=(48, 64))).tensors)
    changed = {**tensors, **(changes or {})}
    return {name: value for name, value in changed.items() if value is not None}


def state(**fields: Any) -> Stored:
    """Return the description of the matrix with other fields."""
    description = {"quant_type": "nf4", "blocksize": 24, "dtype": "float32", "shape": [48, 64], **fields}
    return "U8", np.frombuffer(json.dumps(description).encode(), np.uint8)


def metadata(text: str) -> Stored:
    return "JSON", np.frombuffer(text.encode(), np.uint8)


def described(kind: str, **data: Any) -> Stored:
    return metadata(json.dumps({"_type": kind, "_data": data}))


def floats(*shape: int) -> Stored:
    return "F32", np.ones(shape, np.float32)


@pytest.mark.parametrize(("layout", "changes", "words"), [
    ("nf4", {STATE: None}, "bitsandbytes__nf4"),
    ("nf4", {f"{WEIGHT}.quant_map": None}, ".quant_map"),
    ("nf4", {f"{WEIGHT}.absmax": None}, "a leftover of bitsandbytes"),
    ("nf4", {WEIGHT: None}, "a leftover of bitsandbytes"),
    ("nf4", {WEIGHT: ("U8", np.zeros((1535, 1), np.uint8))}, "1536 bytes"),
    ("nf4", {WEIGHT: ("F8_E4M3", np.zeros((1536, 1), np.uint8))}, "F8_E4M3"),
    ("nf4", {f"{WEIGHT}.absmax": floats(127)}, "[127]"),
    ("nf4", {f"{WEIGHT}.absmax": ("U8", np.ones(128, np.uint8))}, "found U8"),
    ("nf4", {f"{WEIGHT}.quant_map": floats(256)}, "[256]"),
    ("nf4", {STATE: ("U8", np.frombuffer(b'{"quant_type": "nf4"', np.uint8))}, "cannot be read"),
    ("nf4", {STATE: ("U8", np.frombuffer(b"[" * 4000, np.uint8))}, "cannot be read"),
    ("nf4", {STATE: ("U8", np.full(4097, 32, np.uint8))}, "at most 4096 bytes"),
    ("nf4", {STATE: ("U8", np.frombuffer(b"[1]", np.uint8))}, "quant_type"),
    ("nf4", {STATE: state(quant_type="fp4")}, "quant_type 'nf4'"),
    ("nf4", {STATE: state(shape=[3072])}, "shape of two or three sizes"),
    ("nf4", {STATE: state(shape=[48, 64.0])}, "shape of two or three sizes"),
    ("nf4", {STATE: state(shape=[2**40, 2**40])}, "bytes for"),
    ("nf4", {STATE: state(shape=[48, 65])}, "1560 bytes"),
    ("nf4", {STATE: state(blocksize=0)}, "blocksize"),
    ("nf4", {STATE: state(blocksize=True)}, "blocksize"),
    ("nf4-nested", {STATE: state()}, "nested_blocksize"),
    ("nf4-nested", {STATE: state(nested_blocksize=16, nested_dtype="float16")}, "nested_dtype"),
    ("nf4-nested", {STATE: state(nested_blocksize=16)}, "nested_offset"),
    ("nf4-nested", {STATE: state(nested_blocksize=8, nested_offset=0.5)}, "nested_absmax"),
    ("nf4-nested", {f"{WEIGHT}.nested_quant_map": None}, ".nested_quant_map"),
    ("nf4-nested", {f"{WEIGHT}.nested_absmax": None}, ".nested_absmax"),
    ("nf4-nested", {f"{WEIGHT}.nested_quant_map": floats(255)}, "[255]"),
    ("llm-int8", {f"{MODULE}.SCB": floats(47)}, "[47]"),
    ("llm-int8", {WEIGHT: ("U8", np.zeros((48, 64), np.uint8))}, "expected I8"),
    ("llm-int8", {f"{MODULE}.SCB": None}, "a leftover of bitsandbytes"),
    ("llm-int8", {f"{MODULE}.weight_format": ("U8", np.array(2, np.uint8))}, "an order of old GPU kernels"),
    ("llm-int8", {f"{MODULE}.weight_format": ("U8", np.zeros(3, np.uint8))}, "[3]"),
    ("torchao-float8", {WEIGHT: None}, "does not describe it"),
    ("torchao-float8", {WEIGHT: metadata("{")}, "cannot be read"),
    ("torchao-float8", {WEIGHT: metadata('{"a": 1, "a": 2}')}, "duplicate keys"),
    ("torchao-float8", {WEIGHT: metadata("[" * 60_000)}, "cannot be read"),
    ("torchao-float8", {WEIGHT: metadata(" " * 65_537)}, "at most 65536"),
    ("torchao-float8", {WEIGHT: metadata("[]")}, "_type and _data"),
    ("torchao-float8", {WEIGHT: described("Float8Tensor", block_size=[1, 2.5])}, "block_size"),
    ("torchao-float8", {WEIGHT: described("Float8Tensor", block_size=[1, 1, 1, 64])}, "block_size"),
    ("torchao-float8", {WEIGHT: described("Float8Tensor", block_size=[1, 32])}, "[48, 2]"),
    ("torchao-float8", {WEIGHT: described("Float8Tensor", block_size=[64])}, "[64]"),
    ("torchao-float8", {WEIGHT: described("Int8Tensor", block_size=[1, 64])}, "expected I8"),
    ("torchao-float8", {WEIGHT: described("os.system", block_size=[1, 64])}, "'os.system'"),
    ("torchao-float8", {f"{MODULE}._weight_scale": None}, "expected a scale"),
    ("torchao-float8", {f"{MODULE}._weight_qdata": None}, "a leftover of torchao"),
    ("torchao-float8", {f"{MODULE}._weight_act_pre_scale": floats(64)}, "_weight_act_pre_scale"),
    ("torchao-float8", {WEIGHT: floats(48, 64)}, "stored twice"),
    ("torchao-int8", {f"{MODULE}._weight_scale": floats(48, 7)}, "[48, 7]"),
    ("torchao-int8", {f"{MODULE}._weight_zero_point": floats(48, 8)}, "expected I8"),
    ("torchao-int4", {f"{MODULE}._weight_zero_point": None}, "_zero_point"),
    ("torchao-int4", {f"{MODULE}._weight_scale": floats(48, 8)}, "48 groups"),
    ("torchao-int4", {f"{MODULE}._weight_zero_point": floats(4, 48)}, "[4, 48]"),
    ("torchao-int4", {WEIGHT: described("Int4Tensor", block_size=[1, 8], shape=[48, 32])}, "[48, 32]"),
    ("torchao-int4", {WEIGHT: described("Int4Tensor", block_size=[1, 16], shape=[48, 64])}, "[1, 16]"),
])  # fmt: skip
def test_tensors_that_make_no_weight_are_named(tmp_path: Path, layout: str, changes: Change, words: str) -> None:
    grouped, _ = group(tmp_path, stored(layout, changes))
    assert list(grouped.faults) == [WEIGHT] and WEIGHT not in grouped.quantised
    assert words in grouped.faults[WEIGHT]


@pytest.mark.parametrize(("kind", "words"), [
    ("Int4TilePackedTo4dTensor", "tile_packed_to_4d"),
    ("Int4PreshuffledTensor", "preshuffled"),
    ("Int4PlainInt32Tensor", "XPU"),
    ("MXTensor", "MX floats of torchao"),
    ("NVFP4Tensor", "NVFP4 of torchao"),
])  # fmt: skip
def test_layouts_that_are_not_read_are_named_with_advice(tmp_path: Path, kind: str, words: str) -> None:
    tensors: dict[str, Stored] = {f"{MODULE}._weight_qdata": ("I32", np.zeros((6, 4, 32, 4), np.int32))}
    tensors |= {f"{MODULE}._weight_{part}": floats(2, 48) for part in ("scale", "scale_and_zero", "per_tensor_scale")}
    tensors[f"{MODULE}._weight_act_per_tensor_scale"] = floats()
    grouped, _ = group(tmp_path, tensors | {WEIGHT: described(kind, block_size=[1, 32])})
    assert list(grouped.faults) == [WEIGHT] and set(grouped.parts) == set(tensors)
    assert words in grouped.faults[WEIGHT] and "hybridlm quantise" in grouped.faults[WEIGHT]


@pytest.mark.parametrize(("layout", "name", "value"), [
    ("nf4", f"{WEIGHT}.absmax", np.nan), ("nf4", f"{WEIGHT}.quant_map", 0.5), ("fp4", f"{WEIGHT}.absmax", np.inf),
    ("nf4-nested", f"{WEIGHT}.nested_absmax", np.inf), ("nf4-nested", f"{WEIGHT}.nested_absmax", 3e38),
    ("llm-int8", f"{MODULE}.SCB", np.nan), ("torchao-float8", f"{MODULE}._weight_qdata", 0x7F),
    ("torchao-float8", f"{MODULE}._weight_scale", np.inf), ("torchao-int8", f"{MODULE}._weight_scale", np.nan),
    ("torchao-int4", f"{MODULE}._weight_zero_point", np.nan),
])  # fmt: skip
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, layout: str, name: str, value: float) -> None:
    tensors = stored(layout)
    kind, array = tensors[name]
    array = np.array(array)
    array.reshape(-1)[-1] = value
    grouped, file = group(tmp_path, tensors | {name: (kind, array)})
    with pytest.raises(DequantiseError) as caught:
        dequantise(grouped.quantised[WEIGHT], file.read_stored)
    assert caught.value.tensor == (name if "nested" not in name else f"{WEIGHT}.absmax")


def test_a_file_without_the_format_of_rows_is_read(tmp_path: Path) -> None:
    grouped, _ = group(tmp_path, stored("llm-int8", {f"{MODULE}.weight_format": None}))
    assert grouped.quantised[WEIGHT].scheme == "llm-int8" and not grouped.faults


def test_scales_of_activations_are_not_used(tmp_path: Path) -> None:
    name = f"{MODULE}._weight_act_quant_scale"
    grouped, _ = group(tmp_path, stored("torchao-int8", {name: floats(1)}))
    assert grouped.quantised[WEIGHT].scheme == "int8" and not grouped.faults and name in grouped.parts


@pytest.mark.parametrize(("layout", "config", "words"), [
    ("nf4", bitsandbytes("fp4"), "says fp4"),
    ("nf4", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "says llm-int8"),
    ("llm-int8", bitsandbytes("nf4"), "says nf4"),
    ("torchao-float8", torchao("Int8WeightOnlyConfig"), "says int8"),
    ("torchao-int8", torchao("Int4WeightOnlyConfig"), "says int4-affine"),
    ("nf4", bitsandbytes("nf4") | {"llm_int8_skip_modules": [MODULE]}, "lists"),
    ("torchao-int8", {"quant_method": "torchao", "modules_to_not_convert": [MODULE]}, "lists"),
])  # fmt: skip
def test_a_contradiction_names_both_sides(tmp_path: Path, layout: str, config: dict[str, Any], words: str) -> None:
    grouped, _ = group(tmp_path, stored(layout))
    settings = read_settings({"quantization_config": config}, None)
    assert not settings.faults
    (contradiction,) = contradictions(settings, grouped.quantised, [])
    assert WEIGHT in contradiction and LAYOUTS[layout].scheme in contradiction and words in contradiction


@pytest.mark.parametrize(
    "quant_type",
    [None, "int4_weight_only", {"default": {"_type": "FqnToConfig", "_data": {}}}, {"default": {"_type": ["x"]}}, []],
)
def test_other_configurations_of_torchao_leave_the_schemes_to_the_tensors(quant_type: Any) -> None:
    settings = read_settings({"quantization_config": {"quant_method": "torchao", "quant_type": quant_type}}, None)
    assert (settings.method, settings.schemes, settings.faults) == ("torchao", None, ())
