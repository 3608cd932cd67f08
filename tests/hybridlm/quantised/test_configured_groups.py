"""Layouts of integers that the configuration says and tensors do not show: versions, orders, zero points, groups."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoint import (
    GROUP,
    LAYOUTS,
    Layout,
    Quantised,
    Stored,
    bit_stream,
    config_group,
    integers,
    named,
    write_tensors,
)

from hybridlm.checkpoint import open_directory
from hybridlm.quantised import read_settings

NAME = "model.layers.0.mlp.up_proj.weight"
Change = Callable[[dict[str, Stored]], Any]
INTEGERS = dict(num_bits=4, type="int", strategy="group", group_size=GROUP)


def write(folder: Path, quantised: Quantised, config: Any, change: Change = lambda tensors: None) -> None:
    tensors = named(NAME, quantised.tensors)
    change(tensors)
    write_tensors(folder / "model.safetensors", tensors)
    fields = {"model_type": "qwen3_5_text"} | ({} if config is None else {"quantization_config": config})
    (folder / "config.json").write_text(json.dumps(fields))


def matrix() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(32, 64))


def check(folder: Path, quantised: Quantised) -> None:
    checkpoint = open_directory(folder)
    assert not checkpoint.settings.faults and not checkpoint.grouped.faults
    np.testing.assert_allclose(checkpoint.read(NAME), quantised.exact, rtol=1e-6)


def fault(folder: Path) -> str:
    checkpoint = open_directory(folder)
    assert NAME not in checkpoint.grouped.quantised
    return checkpoint.grouped.faults[NAME]


@pytest.mark.parametrize("version", [
    {"format": "gptq_v2"}, {"checkpoint_format": "GPTQ_V2"}, {"format": "gptq_v2", "checkpoint_format": "gptq_v2"},
])  # fmt: skip
@pytest.mark.parametrize("method", [{"quant_method": "gptq"}, None])
def test_the_second_version_of_gptq(tmp_path: Path, version: dict[str, Any], method: dict[str, Any] | None) -> None:
    """Its zero points are stored as they are. transformers writes `format`, older libraries quantize_config.json."""
    quantised = LAYOUTS["gptq-v2"].quantise(matrix())
    write(tmp_path, quantised, None if method is None else method | version)
    if method is None:
        (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": GROUP} | version))
    check(tmp_path, quantised)


def test_a_separate_configuration_does_not_replace_that_of_the_model(tmp_path: Path) -> None:
    quantised = LAYOUTS["gptq"].quantise(matrix())
    write(tmp_path, quantised, {"quant_method": "gptq"})
    (tmp_path / "quantize_config.json").write_text(json.dumps({"checkpoint_format": "gptq_v2"}))
    check(tmp_path, quantised)


@pytest.mark.parametrize(("config", "words"), [
    ({"quant_method": "gptq", "format": "bitblas"}, "quantization_config.format: expected gptq or gptq_v2, found 'bit"),
    ({"quant_method": "gptq", "is_marlin_format": True}, "marlin"),
    ({"quant_method": "gptq", "format": "gptq", "checkpoint_format": "gptq_v2"}, "found 'gptq'"),
    ({"quant_method": "awq", "format": "gemv_fast"}, "gemv_fast"),
    ({"quant_method": "awq", "backend": "llm-awq"}, "llm-awq"),
])  # fmt: skip
def test_versions_that_are_refused(config: Any, words: str) -> None:
    faults = read_settings({"quantization_config": config}, None).faults
    assert len(faults) == 1 and words in faults[0], faults


@pytest.mark.parametrize("config", [
    {"quant_method": "gptq", "format": "gptq"}, {"quant_method": "awq", "version": "GEMM"},
    {"quant_method": "awq", "format": "gemm", "version": "gemm"}, {"quant_method": "awq", "backend": "autoawq"},
])  # fmt: skip
def test_versions_that_are_read(config: Any) -> None:
    assert not read_settings({"quantization_config": config}, None).faults


def without(end: str) -> Change:
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if name.endswith(end)]


@pytest.mark.parametrize(("layout", "config", "end", "words"), [
    ("gptq-order", {"quant_method": "gptq", "desc_act": True}, "g_idx", "expected g_idx"),
    ("ct-int4-order", config_group(**INTEGERS, actorder="group"), "_g_idx", "expected g_idx"),
    ("ct-int4-zeros", config_group(**INTEGERS, symmetric=False), "_zero_point", "zero points"),
])  # fmt: skip
def test_tensors_that_the_configuration_wants(tmp_path: Path, layout: str, config: Any, end: str, words: str) -> None:
    quantised = LAYOUTS[layout].quantise(matrix())
    (tmp_path / "whole").mkdir()
    write(tmp_path / "whole", quantised, config)
    check(tmp_path / "whole", quantised)
    write(tmp_path, quantised, config, without(end))
    assert words in fault(tmp_path)


def test_an_order_of_some_groups_is_not_wanted_of_all(tmp_path: Path) -> None:
    config = config_group(**INTEGERS, symmetric=False)
    config["config_groups"]["group_1"] = {"weights": INTEGERS}
    config["config_groups"]["group_2"] = {"weights": INTEGERS | {"actorder": "group"}}
    quantised = LAYOUTS["ct-int4"].quantise(matrix())
    write(tmp_path, quantised, config)
    check(tmp_path, quantised)


def cut(weight: np.ndarray, form: str) -> Quantised:
    """Groups of 48 columns, the last of which the columns do not fill."""
    rows, columns = weight.shape
    order = np.arange(columns) // 48
    codes, scale, zero, groups, exact = integers(weight, 8 if form == "int8" else 4, 48, order, False, "F16")
    if form == "int8":
        signed = codes.astype(np.int8) ^ np.int8(-128)
        return Quantised({"": ("I8", signed), "_scale": ("F16", scale)}, exact)
    if form == "int-packed":
        shape = np.array([rows, columns], np.int64)
        packed = bit_stream(codes, 4)
        return Quantised({"_packed": ("I32", packed), "_scale": ("F16", scale), "_shape": ("I64", shape)}, exact)
    tensors: dict[str, Stored] = {
        "qweight": ("I32", np.ascontiguousarray(bit_stream(codes, 4).T)),
        "qzeros": ("I32", bit_stream(np.ascontiguousarray((zero - 1).T), 4)),
        "scales": ("F16", np.ascontiguousarray(scale.T)),
    }
    return Quantised(tensors | {"g_idx": ("I32", groups.astype(np.int32))}, exact)


@pytest.mark.parametrize(("form", "config"), [
    ("gptq", {"quant_method": "gptq", "group_size": 48}),
    ("gptq", {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "group_size": 48}),
    ("int-packed", config_group(**INTEGERS | {"group_size": 48})),
    ("int8", config_group(**INTEGERS | {"group_size": 48, "num_bits": 8})),
])  # fmt: skip
def test_groups_that_columns_do_not_fill(tmp_path: Path, form: str, config: Any) -> None:
    """Two groups of 48 for 64 columns are not two of 32; GPTQ's order of columns tells them."""
    quantised = cut(matrix(), form)
    write(tmp_path, quantised, config, without("g_idx"))
    assert "2 groups of 48 columns do not divide 64 columns" in fault(tmp_path)
    if form == "gptq":
        (tmp_path / "whole").mkdir()
        write(tmp_path / "whole", quantised, config)
        check(tmp_path / "whole", quantised)


def test_sizes_of_groups_differ_between_modules(tmp_path: Path) -> None:
    """The size of another module is no fault, nor one that some modules contradict."""
    for number, sizes in enumerate(([48, GROUP], [16])):
        config = config_group(**INTEGERS | {"group_size": sizes[0]})
        for size in sizes[1:]:
            config["config_groups"][f"group_{size}"] = {"weights": INTEGERS | {"group_size": size}}
        folder = tmp_path / str(number)
        folder.mkdir()
        quantised = LAYOUTS["ct-int4"].quantise(matrix())
        write(folder, quantised, config)
        check(folder, quantised)


@pytest.mark.parametrize("layout", ["ct-fp8-rows", "ct-nvfp4", "ct-mxfp4"])
@pytest.mark.parametrize("zero", [0, 0x40])
def test_floats_have_no_zero_points(tmp_path: Path, layout: str, zero: int) -> None:
    """Old files of compressed-tensors hold zeros; other numbers would be subtracted."""
    chosen: Layout = LAYOUTS[layout]
    quantised = chosen.quantise(matrix())
    points = np.full(quantised.tensors["_scale"][1].shape, zero, np.uint8)
    write(tmp_path, quantised, chosen.config, lambda tensors: tensors.update({f"{NAME}_zero_point": ("U8", points)}))
    if zero:
        assert "expected zeros" in fault(tmp_path)
    else:
        check(tmp_path, quantised)


def test_blocks_of_float8_are_128_by_128_unless_said(tmp_path: Path) -> None:
    """transformers' default; null means one scale."""
    for config, expected in (({}, True), ({"weight_block_size": None}, False)):
        schemes = read_settings({"quantization_config": {"quant_method": "fp8"} | config}, None).schemes
        assert schemes is not None and ("fp8-block" in schemes) == expected
