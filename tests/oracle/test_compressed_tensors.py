"""Quantised weights against compressed-tensors: written, converted, and float32 numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoint import LAYOUTS, config_group

from hybridlm.checkpoint import open_safetensors
from hybridlm.quantised import contradictions, dequantise, group_tensors, read_settings

pytestmark = pytest.mark.oracle
NAME = "model.layers.0.mlp.up_proj"


def ours(path: Path, config: dict[str, Any]) -> np.ndarray:
    file = open_safetensors(path)
    settings = read_settings({"quantization_config": config}, None)
    grouped = group_tensors(file.tensors, file.read_stored, settings.hints)
    assert not grouped.faults and not settings.faults and set(grouped.parts) == set(file.tensors)
    assert not list(contradictions(settings, grouped.quantised, []))
    return dequantise(grouped.quantised[f"{NAME}.weight"], file.read_stored)


def stored(path: Path, tensors: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    save_file({f"{NAME}.{key}": value.contiguous() for key, value in tensors.items()}, path)
    return path


WRITTEN = [
    dict(num_bits=8, type="float", strategy="tensor"),
    dict(num_bits=8, type="float", strategy="channel"),
    dict(num_bits=8, type="int", strategy="channel"),
    dict(num_bits=4, type="int", strategy="channel"),
    dict(num_bits=4, type="int", strategy="group", group_size=32),
    dict(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
    dict(num_bits=3, type="int", strategy="group", group_size=16, symmetric=False),
    dict(num_bits=8, type="int", strategy="group", group_size=32),
    dict(num_bits=4, type="float", strategy="tensor_group", group_size=16),
]


@pytest.mark.parametrize("weights", WRITTEN, ids=lambda mapping: "-".join(map(str, mapping.values())))
@pytest.mark.parametrize("size", [(48, 64), (50, 96), (9, 160)], ids=str)
def test_files_of_the_library(tmp_path: Path, weights: dict[str, Any], size: tuple[int, int]) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    arguments = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    weight = torch.randn(size, generator=torch.Generator().manual_seed(1))
    group = weights.get("group_size")
    grouped = weight.reshape(size[0], -1, group) if group else weight.reshape(size[0], 1, -1)
    low, high = grouped.amin(-1), grouped.amax(-1)
    if weights["strategy"] == "tensor":
        low, high = low.amin().reshape(1), high.amax().reshape(1)
    state: dict[str, Any] = {"weight": weight}
    if weights["strategy"] == "tensor_group":
        state["weight_global_scale"] = (448 * 6 / weight.abs().amax()).reshape(1).float()
    scale, zero = calculate_qparams(low, high, arguments, global_scale=state.get("weight_global_scale"))
    state |= {"weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme).value)
    written: dict[str, Any] = dict(compressor.compress(state, scheme))
    # The library computes in the dtype of the scales; in float32 there is one formula.
    reference = {key: value.float() if value.dtype == torch.bfloat16 else value for key, value in written.items()}
    if weights["strategy"] == "tensor_group":
        # Its own product is rounded to bfloat16.
        codes = unpack_fp4_from_uint8(written["weight_packed"], *size, dtype=torch.float32)
        factor = written["weight_scale"].float() / written["weight_global_scale"]
        expected = (codes.reshape(size[0], -1, 16) * factor[..., None]).reshape(size).numpy()
    else:
        expected = dict[str, Any](compressor.decompress(reference, scheme))["weight"].float().numpy()
    actual = ours(stored(tmp_path / "m.safetensors", written), config_group(**weights))
    np.testing.assert_allclose(actual, expected, rtol=2**-22, atol=0)
    assert np.abs(actual - weight.numpy()).max() < np.abs(weight.numpy()).max()


@pytest.mark.parametrize("size", [(48, 64), (576, 130), (257, 129), (1, 1)], ids=str)
def test_blocks_with_a_cut_last_block(tmp_path: Path, size: tuple[int, int]) -> None:
    import torch
    from compressed_tensors.entrypoints.convert.converters import FP8BlockDequantizer

    generator = torch.Generator().manual_seed(2)
    codes = torch.randn(size, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand((-(-size[0] // 128), -(-size[1] // 128)), generator=generator).bfloat16()
    tensors = {"weight": codes, "weight_scale_inv": scale}
    path = stored(tmp_path / "m.safetensors", tensors)
    converter = FP8BlockDequantizer(targets=["Linear"], dtype=torch.float32)
    expected = converter.process({f"{NAME}.{key}": value for key, value in tensors.items()})[f"{NAME}.weight"]
    np.testing.assert_array_equal(
        ours(path, {"quant_method": "fp8", "weight_block_size": [128, 128]}), expected.numpy()
    )


def test_modelopt_and_compressed_tensors_agree_on_nvfp4(tmp_path: Path) -> None:
    import torch
    from compressed_tensors.entrypoints.convert.converters import ModelOptNvfp4Converter

    tensor = LAYOUTS["modelopt-nvfp4"].quantise(np.random.default_rng(4).normal(size=(48, 64)))
    kinds = {"F8_E4M3": torch.float8_e4m3fn}
    tensors = {
        f"weight{suffix}": torch.from_numpy(np.array(array)).view(kinds[kind])
        if kind in kinds
        else torch.from_numpy(np.array(array))
        for suffix, (kind, array) in tensor.tensors.items()
    } | {"input_scale": torch.ones(())}
    initial = ours(stored(tmp_path / "a.safetensors", tensors), LAYOUTS["modelopt-nvfp4"].config)
    converter = ModelOptNvfp4Converter(targets=["Linear"])
    converted = converter.process({f"{NAME}.{key}": value for key, value in tensors.items()})
    converted = {key.removeprefix(f"{NAME}."): value for key, value in converted.items()}
    assert "weight_global_scale" in converted
    final = ours(stored(tmp_path / "b.safetensors", converted), LAYOUTS["ct-nvfp4"].config)
    # The reciprocal of the global scale is rounded.
    np.testing.assert_allclose(final, initial, rtol=2**-22)
    np.testing.assert_allclose(initial, tensor.exact, rtol=2**-23)


def test_awq_as_the_library_converts_it(tmp_path: Path) -> None:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter

    tensor = LAYOUTS["awq"].quantise(np.random.default_rng(4).normal(size=(48, 64)))
    tensors = {suffix: torch.from_numpy(np.array(array)) for suffix, (_, array) in tensor.tensors.items()}
    actual = ours(stored(tmp_path / "a.safetensors", tensors), LAYOUTS["awq"].config)
    converter = AutoAWQConverter(group_size=8, targets=["Linear"])
    converted = converter.process({f"{NAME}.{key}": value for key, value in tensors.items()})
    converted = {key.removeprefix(f"{NAME}."): value for key, value in converted.items()}
    shape = torch.Size(converted["weight_shape"].tolist())
    codes = unpack_from_int32(converted["weight_packed"], 4, shape).float()
    zero = unpack_from_int32(
        converted["weight_zero_point"], 4, torch.Size((shape[0], shape[1] // 8)), packed_dim=0
    ).float()
    expected = (codes.reshape(shape[0], -1, 8) - zero[..., None]) * converted["weight_scale"].float()[..., None]
    np.testing.assert_array_equal(actual, expected.reshape(shape).numpy())
