"""Tensors that make a quantised weight, leftovers, and contradictions of the configuration."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoint import (
    BLOCK,
    E4M3,
    FP8,
    LAYOUTS,
    Stored,
    float8,
    modelopt,
    named,
    nvfp4,
    write_quantised,
    write_tensors,
)
from quantised_files import group, rewrite

from hybridlm.checkpoint import CheckpointError, load_parameters, open_model, open_safetensors
from hybridlm.quantised import DequantiseError, contradictions, dequantise, group_tensors, read_settings
from hybridlm.quantised.groups import module_name

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
A = "model.layers.0.mlp.down_proj.weight"
ONE = np.ones((), np.float32)


def matrix(rows: int = 48, columns: int = 64) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(rows, columns))


def stored(layout: str = "fp8-block-bf16", name: str = A) -> dict[str, Stored]:
    return named(name, LAYOUTS[layout].quantise(matrix()).tensors)


def fault(tmp_path: Path, tensors: Mapping[str, Stored]) -> str:
    grouped, _ = group(tmp_path, tensors, FP8)
    assert list(grouped.faults) == [A] and A not in grouped.quantised
    return grouped.faults[A]


PLAIN: Stored = ("F32", matrix().astype(np.float32))
CODES: Stored = ("F8_E4M3", np.zeros((48, 64), np.uint8))


@pytest.mark.parametrize(("tensors", "named_in_message"), [
    ({A: PLAIN, A + "_scale_inv": ("F32", np.ones((1, 1), np.float32))}, A + "_scale_inv"),
    ({A: PLAIN, A + "_scale": ("F32", ONE)}, A + "_scale"),
    ({A + "_scale": ("F32", ONE)}, A + "_scale"),
    ({A + "_packed": ("I32", np.zeros((48, 8), np.int32))}, A + "_packed"),
    ({A.removesuffix("weight") + "scales": ("F16", np.ones((8, 48), np.float16))}, "scales"),
    ({A: CODES, A + "_scale_2": ("F32", ONE)}, A),
    ({A: CODES, A + "_scale": ("F32", ONE), A + "_scale_2": ("F32", ONE)}, A + "_scale_2"),
    ({A: CODES, A + "_scale": ("F32", ONE), A + "_scale_inv": ("F32", ONE)}, A + "_scale_inv"),
    ({A: CODES, A + "_scale": ("F32", np.ones((48, 2), np.float32))}, "[2, 4]"),
    ({A: CODES, A + "_scale": ("F32", np.ones((47, 1), np.float32))}, "[47, 1]"),
    ({A: CODES, A + "_scale": ("I32", np.ones((48, 1), np.int32))}, "I32"),
    ({A: CODES, A + "_scale_inv": ("F32", np.ones((4, 2), np.float32))}, "[4, 2]"),
    ({A: PLAIN, A.removesuffix("weight") + "pre_quant_scale": ("F32", np.ones(64, np.float32))}, "pre_quant_scale"),
    ({A: PLAIN, A.removesuffix("weight") + "svdquant_lora_a": ("F32", np.ones((4, 64), np.float32))}, "SVDQuant"),
    ({A: ("U8", np.zeros((48, 32), np.uint8)), A + ".absmax": ("F32", np.ones(48, np.float32))}, "bitsandbytes"),
    ({A: ("U8", np.zeros((48, 1), np.uint8)), A + "_scale": ("F32", ONE)}, "F32"),
    (stored("ct-int4") | {A: PLAIN}, "twice"),
    (stored("ct-int4") | {A + "_shape": ("I64", np.array([48, 65]))}, "no width"),
    (stored("ct-int4") | {A + "_shape": ("I64", np.array([47, 64]))}, "[47, 64]"),
    (stored("ct-int4") | {A + "_shape": ("I64", np.array([48, -64]))}, "[48, -64]"),
    (stored("ct-int4") | {A + "_scale": ("BF16", np.ones((48, 7), np.float32).astype("V2").view("u2"))}, "7 groups"),
    ({key: value for key, value in stored("ct-int4").items() if not key.endswith("_shape")}, "its shape"),
    ({key: value for key, value in stored("gptq").items() if not key.endswith("qzeros")}, "qzeros"),
    (stored("gptq") | stored("ct-int4"), "twice"),
])  # fmt: skip
def test_tensors_that_make_no_weight_are_named(
    tmp_path: Path, tensors: dict[str, Stored], named_in_message: str
) -> None:
    assert named_in_message in fault(tmp_path, tensors)


@pytest.mark.parametrize(("layout", "suffix", "value"), [
    ("fp8-block-f32", "_scale_inv", np.nan), ("fp8-block-f32", "_scale_inv", np.inf),
    ("fp8-block-powers", "_scale_inv", 255), ("fp8-block-f32", "", 0x7F), ("modelopt-fp8", "", 0xFF),
    ("modelopt-mxfp8", "_scale", 255), ("ct-mxfp4", "_scale", 255), ("modelopt-nvfp4", "_scale", 0x7F),
    ("modelopt-nvfp4", "_scale_2", np.nan), ("ct-nvfp4", "_global_scale", 0.0), ("ct-nvfp4", "_global_scale", 1e-37),
    ("modelopt-nvfp4", "_scale_2", 3e37), ("modelopt-mxfp8", "_scale", 254), ("fp8-block-f32", "_scale_inv", -3e37),
    ("ct-int8", "_scale", -np.inf), ("ct-int4-order", "_g_idx", 8), ("ct-int4-order", "_g_idx", -1),
])  # fmt: skip
def test_numbers_that_are_not_finite_are_refused_with_their_tensor(
    tmp_path: Path, layout: str, suffix: str, value: float
) -> None:
    tensors = stored(layout)
    kind, array = tensors[A + suffix]
    array = np.array(array)
    array.reshape(-1)[-1] = value
    grouped, file = group(tmp_path, tensors | {A + suffix: (kind, array)}, LAYOUTS[layout].config)
    with pytest.raises(DequantiseError) as caught:
        dequantise(grouped.quantised[A], file.read_stored)
    assert caught.value.tensor == A + suffix


def test_scales_of_activations_and_caches_are_no_weights(tmp_path: Path) -> None:
    stem = "model.layers.0.self_attn."
    names = [stem + end for end in ("k_proj.k_scale", "v_proj.v_scale", "q_proj.input_scale", "attn.q_bmm_quantizer")]
    grouped, _ = group(tmp_path, stored() | {name: ("F32", ONE) for name in names}, FP8)
    assert list(grouped.quantised) == [A] and not grouped.faults and set(names) < set(grouped.parts)


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    name, experts = "model.layers.0.mlp.experts.gate_up_proj", []
    for seed in range(3):
        weight = np.random.default_rng(seed).normal(size=(50, 64))
        experts.append(float8(weight, BLOCK, "_scale_inv", "BF16", "grid"))
    tensors = {
        name + end: (tensor[0], np.stack([m.tensors[end][1] for m in experts]))
        for end, tensor in experts[0].tensors.items()
    }
    grouped, file = group(tmp_path, tensors, FP8)
    tensor = grouped.quantised[name]
    assert (tensor.scheme, tensor.shape) == ("fp8-block", (3, 50, 64))
    values = dequantise(tensor, file.read_stored)
    np.testing.assert_allclose(values, np.stack([m.exact for m in experts]), rtol=2**-24 * 1.01)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 1), (3, 50), (3, 50, 1)])
def test_experts_in_one_tensor_with_simple_scales(tmp_path: Path, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.block_sparse_moe.input_linear.weight"
    codes = np.random.default_rng(0).integers(0, 126, (3, 50, 64), np.uint8)
    scale = np.random.default_rng(1).uniform(1, 2, shape).astype(np.float32)
    grouped, file = group(tmp_path, {name: ("F8_E4M3", codes), name + "_scale": ("F32", scale)}, modelopt("FP8"))
    values = E4M3[codes].astype(np.float32)
    rows = 50 if 50 in shape else 1
    np.testing.assert_array_equal(
        dequantise(grouped.quantised[name], file.read_stored), values * scale.reshape(3, rows, 1)
    )


def test_many_tensors_are_grouped_at_once(tmp_path: Path) -> None:
    """Names are looked up, not searched: half a million tensors would take hours."""

    class Counting(dict[str, Any]):
        scans = 0

        def __iter__(self) -> Any:
            Counting.scans += 1
            return super().__iter__()

    tensors = stored()
    write_tensors(tmp_path / "m.safetensors", tensors)
    infos = open_safetensors(tmp_path / "m.safetensors").tensors
    copies = Counting({name.replace("layers.0", f"layers.{i}"): infos[name] for i in range(2000) for name in tensors})
    grouped = group_tensors(copies, lambda name: np.zeros(1), read_settings({"quantization_config": FP8}, None).hints)
    assert len(grouped.quantised) == 2000 and not grouped.faults and Counting.scans <= 3


def rotated(*places: str) -> dict[str, Any]:
    """Transforms of compressed-tensors, as SpinQuant and QuIP have them."""
    return {
        "config_groups": {
            f"R{i}": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": place, "inverse": False}]}
            for i, place in enumerate(places)
        }
    }


@pytest.mark.parametrize(("config", "extra_file", "words"), [
    ({"quant_method": "quark"}, None, "Quark"),
    ({"quant_method": "eetq"}, None, "EETQ"),
    ({"quant_method": "dreamt"}, None, "'dreamt'"),
    (modelopt("NVFP4_AWQ"), None, "pre_quant_scale"),
    (modelopt("NVFP4_SVD"), None, "NVFP4_SVD"),
    (modelopt("W2"), None, "W2"),
    (modelopt("FP8"), {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    (FP8, {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    (LAYOUTS["ct-int8"].config, {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    ({}, {"quantization": 3}, "hf_quant_config.json"),
    ("fp8", None, "'fp8'"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, None, "weight_block_size"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, None, "e5m2"),
    ({"quant_method": "fp8", "expert_dtype": "int4"}, None, "int4"),
    ({"quant_method": "fp8", "routed_experts_quant_method": "nvfp4"}, None, "nvfp4"),
    (LAYOUTS["fp8-ling-experts"].config | {"routed_experts_group_size": 16}, None, "group_size: expected 32, found 16"),
    ({"quant_method": "gptq", "checkpoint_format": "marlin"}, None, "marlin"),
    ({"quant_method": "awq", "version": "gemv"}, None, "gemv"),
    ({"quant_method": "auto-round", "packing_format": "x"}, None, "packing_format"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "nf"}}}}, None, "nf"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {}}}, None, "config_groups.g"),
    ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, None, "sparse"),
    ({"quant_method": "compressed-tensors", "sparsity_config": ["2:4"]}, None, "sparsity_config"),
    ({"quant_method": "compressed-tensors", "transform_config": rotated("weight_output", "input")}, None, "input"),
    ({"quant_method": "compressed-tensors", "transform_config": rotated("k_cache")}, None, "k_cache"),
    ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": 1}}}, None, "transform"),
    ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": [1]}}, None, "transform"),
    ({"quant_method": "compressed-tensors", "transform_config": ["R1"]}, None, "transform_config"),
    ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, None, "modules_to_not_convert"),
])  # fmt: skip
def test_configurations_that_are_refused(config: Any, extra_file: Any, words: str) -> None:
    for outer in ({"quantization_config": config}, {"text_config": {"quantization_config": config}}):
        settings = read_settings(outer, extra_file)
        assert any(words in fault for fault in settings.faults), settings


@pytest.mark.parametrize("transforms", [None, {}, {"config_groups": {}}, rotated("weight_input", "weight_output")])
def test_transforms_that_are_part_of_the_weights(transforms: Any) -> None:
    config = {"quant_method": "compressed-tensors", "transform_config": transforms}
    assert not read_settings({"quantization_config": config}, None).faults


def test_the_second_description_counts_alone() -> None:
    settings = read_settings({}, {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}})
    assert (settings.schemes, settings.ignored, settings.faults) == (frozenset({"nvfp4"}), ("lm_head",), ())


def test_two_descriptions_of_one_file_must_agree() -> None:
    outer = {"quantization_config": FP8, "text_config": {"quantization_config": modelopt("FP8")}}
    assert read_settings(outer, None).faults


MIXED = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4"}}}


@pytest.mark.parametrize(("layout", "config", "side"), [
    ("modelopt-nvfp4", modelopt("FP8"), "fp8-tensor"),
    ("ct-int4", LAYOUTS["ct-nvfp4"].config, "nvfp4"),
    ("ct-int3", LAYOUTS["ct-int4"].config, "integers of 4 bits"),
    ("gptq", {"quant_method": "awq"}, "awq"),
    ("fp8-block-f32", FP8 | {"modules_to_not_convert": ["layers.0.mlp.down_proj"]}, "plainly"),
    ("modelopt-nvfp4", modelopt("NVFP4") | {"exclude_modules": ["backbone.layers.0.mlp*"]}, "plainly"),
    ("modelopt-fp8", MIXED, "nvfp4"),
    ("modelopt-nvfp4", MIXED | {"quantized_layers": {"lm_head": {"quant_algo": "NVFP4"}}}, "does not list it"),
    (None, MIXED, "plain numbers"),
    ("modelopt-fp8", MIXED | {"quantized_layers": {"model.layers.0.mlp": {"quant_algo": "NVFP4"}}}, "nvfp4"),
    ("modelopt-fp8", modelopt("FP8") | {"ignore": ["model.layers.0.mlp.down_proj.\0a_mark"]}, "plainly"),
    ("modelopt-fp8", modelopt("FP8") | {"ignore": ["model.layers.0.mlp.\0a_mark*"]}, "plainly"),
])  # fmt: skip
def test_a_contradiction_names_both_sides(tmp_path: Path, layout: str | None, config: Any, side: str) -> None:
    tensors = {A: PLAIN} if layout is None else stored(layout)
    grouped, file = group(tmp_path, tensors, LAYOUTS[layout].config if layout else {})
    settings = read_settings({"quantization_config": {"quant_method": "modelopt"} | config}, None)
    assert not settings.faults
    (contradiction,) = contradictions(settings, grouped.quantised, file.tensors.keys() - grouped.parts.keys())
    assert A in contradiction and side in contradiction and (layout is None or LAYOUTS[layout].scheme in contradiction)


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", "backbone.", "language_model.model.", ""])
def test_wrappers_of_the_language_model_do_not_matter(prefix: str) -> None:
    assert module_name(f"{prefix}layers.3.mlp.gate.weight") == "layers.3.mlp.gate"


def test_a_list_that_matches_nothing_is_no_contradiction(tmp_path: Path) -> None:
    """A published file has a wrong suffix on every entry; plain tensors identify themselves."""
    grouped, _ = group(tmp_path, stored("modelopt-nvfp4") | {"lm_head.weight": PLAIN}, modelopt("NVFP4"))
    settings = read_settings(
        {"quantization_config": modelopt("NVFP4") | {"ignore": ["lm_head_weight_quantizer"]}}, None
    )
    assert not list(contradictions(settings, grouped.quantised, ["lm_head.weight"]))


def test_every_fault_of_a_checkpoint_at_once(tmp_path: Path) -> None:
    folder, names = write_quantised(GOLDEN / "sparse_base", tmp_path / "c", LAYOUTS["modelopt-nvfp4"])
    first, second, third = names[:3]

    def change(tensors: dict[str, Stored]) -> None:
        del tensors[first + "_scale"], tensors[second + "_scale_2"]
        tensors[third + "_scale"] = ("F8_E4M3", tensors[third + "_scale"][1][:, :1])

    rewrite(folder / "quantised" / "model.safetensors", change)
    model = open_model(folder / "quantised")
    with pytest.raises(CheckpointError) as caught:
        load_parameters(model, "float32")
    for name in (first, second, third):
        assert sum(name in fault for fault in caught.value.faults) == 1, caught.value.faults


def test_a_damaged_number_names_the_file(tmp_path: Path) -> None:
    folder, names = write_quantised(GOLDEN / "sparse_base", tmp_path / "c", LAYOUTS["fp8-block-f32"])
    path = folder / "quantised" / "model.safetensors"
    rewrite(path, lambda tensors: tensors[names[-1] + "_scale_inv"][1].fill(np.nan))
    with pytest.raises(CheckpointError) as caught:
        load_parameters(open_model(folder / "quantised"), "bfloat16")
    assert caught.value.where == str(path) and names[-1] + "_scale_inv" in caught.value.faults[0]


def test_settings_are_read_from_a_file_of_bounded_size(tmp_path: Path) -> None:
    folder, _ = write_quantised(GOLDEN / "sparse_base", tmp_path / "c", LAYOUTS["modelopt-nvfp4"])
    extra_file = folder / "quantised" / "hf_quant_config.json"
    extra_file.write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    model = open_model(folder / "quantised")
    with pytest.raises(CheckpointError) as caught:
        load_parameters(model, "float32")
    assert "hf_quant_config.json says FP8" in caught.value.faults[0]
    extra_file.write_text(" " * (17 << 20))
    with pytest.raises(CheckpointError):
        open_model(folder / "quantised")


def test_nvfp4_nibbles_and_blocks_are_not_swizzled(tmp_path: Path) -> None:
    """Columns of one row in order: the low nibble first, scales row by row."""
    codes = np.array([[i % 16 for i in range(32)]] * 2, np.uint8)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    scale = np.array([[0x38, 0x40], [0x30, 0x48]], np.uint8)
    tensors = {A: ("U8", packed), A + "_scale": ("F8_E4M3", scale), A + "_scale_2": ("F32", ONE)}
    grouped, file = group(tmp_path, tensors, modelopt("NVFP4"))
    result = dequantise(grouped.quantised[A], file.read_stored)
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    expected = [
        [sign * v * s for s in pair for sign, v in itertools.product((1, -1), values)] for pair in ((1, 2), (0.5, 4))
    ]
    assert result.tolist() == expected
    assert nvfp4(matrix(), False).exact.shape == (48, 64)
