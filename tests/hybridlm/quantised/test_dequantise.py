"""Quantised weights against float64 formulas, and tiny models against their dequantised form."""

from pathlib import Path

import numpy as np
import pytest
from quantised_checkpoint import LAYOUTS, named, write_quantised
from quantised_files import group

from hybridlm.checkpoint import load_parameters, open_model
from hybridlm.quantised import SCHEMES, contradictions, dequantise, read_settings
from hybridlm.quantised.codes import float4_e2m1, float8_e4m3, float8_e8m0, packed_integers

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.mark.each_value
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "size", [(48, 64), (16, 32), (64, 96), (50, 52), (7, 21), (1, 40), (48, 48), (130, 257)], ids=str
)
def test_formula(tmp_path: Path, layout: str, size: tuple[int, int]) -> None:
    scheme, config, quantise, multiple = LAYOUTS[layout]
    size = (max(size[0] // multiple[0], 1) * multiple[0], max(size[1] // multiple[1], 1) * multiple[1])
    packed = quantise(np.random.default_rng(3).normal(size=size) * np.linspace(0.1, 3, size[0])[:, None])
    settings = read_settings({"quantization_config": config}, None)
    assert not settings.faults
    grouped, file = group(tmp_path, named("a.weight", packed.tensors), config)
    assert not grouped.faults and list(grouped.quantised) == ["a.weight"] and set(grouped.parts) == set(file.tensors)
    tensor = grouped.quantised["a.weight"]
    # One scale for the only row is stored as one scale for all.
    assert tensor.scheme == ("fp8-tensor" if scheme == "fp8-channel" and size[0] == 1 else scheme)
    assert tensor.shape == size and not list(contradictions(settings, grouped.quantised, []))
    values = dequantise(tensor, file.read_stored)
    assert values.dtype == np.float32
    # At most two products in float32, one of them exact.
    np.testing.assert_allclose(values, packed.exact, rtol=2**-24 * 1.01, atol=0)


def test_every_scheme_is_written() -> None:
    assert {layout.scheme for layout in LAYOUTS.values()} == set(SCHEMES)


FAMILIES = ["dense_interval", "sparse_base", "next_dense_layers", "nemotron_latent", "mamba2_base", "kimi_base"]


@pytest.mark.each_value
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_models_load_with_the_numbers_of_their_dequantised_form(tmp_path: Path, family: str, layout: str) -> None:
    folder, names = write_quantised(GOLDEN / family, tmp_path / family, LAYOUTS[layout])
    read = {}
    for kind in ("quantised", "plain"):
        read[kind] = load_parameters(open_model(folder / kind), "float32").arrays
    assert names, f"{family}: no weight fits {layout}"
    assert read["quantised"].keys() == read["plain"].keys()
    for path, array in read["quantised"].items():
        np.testing.assert_allclose(np.asarray(array), np.asarray(read["plain"][path]), rtol=2**-23, atol=0)


def test_codes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    assert np.isnan(float8_e4m3(codes)).nonzero()[0].tolist() == [0x7F, 0xFF]
    powers = float8_e8m0(codes)
    assert np.isnan(powers).nonzero()[0].tolist() == [255]
    assert powers[0] == 2.0**-127 and powers[127] == 1 and powers[254] == 2.0**127
    pairs = float4_e2m1(np.array([[0x8F, 0x31]], np.uint8))
    assert pairs.tolist() == [[-6.0, 0.0, 0.5, 1.5]] and np.signbit(pairs[0, 1])
    words = np.array([0x76543210, 0x0000FFFF], np.uint32).view(np.int32)
    assert packed_integers(words, 4, 10).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 15, 15]
    assert packed_integers(words, 5, 7).tolist() == [0x76543210 >> 5 * i & 31 for i in range(6)] + [
        0xFFFF76543210 >> 30 & 31
    ]
