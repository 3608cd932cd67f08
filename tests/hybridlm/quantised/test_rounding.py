"""Rounding to nearest codes, in every scheme and shape."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hybridlm.checkpoint import open_safetensors
from hybridlm.quantised import dequantise, group_tensors, read_settings
from hybridlm.quantised.codes import E2M1
from hybridlm.quantised.rounding import RoundingScheme, rounding_scheme

SCHEMES = [("fp8-block", None), ("int8", None), ("int8", 16), ("int4", 8), ("nvfp4", None)]


E4M3 = np.unique(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64))


CODES = {
    "fp8-block": E4M3[np.isfinite(E4M3)],
    "int8": np.arange(-128.0, 128),
    "int4": np.arange(-8.0, 8),
    "nvfp4": np.unique(E2M1.astype(np.float64)),
}


def scale_of_numbers(stored: dict[str, np.ndarray], scheme: RoundingScheme, shape: tuple[int, ...]) -> np.ndarray:
    """The step of each number, in float64."""
    scale = stored["weight_scale"].astype(np.float64)
    if scheme.name == "fp8-block":
        return np.repeat(np.repeat(scale, 128, -2), 128, -1)[..., : shape[-2], : shape[-1]]
    if scheme.name == "nvfp4":
        scale = scale / float(stored["weight_global_scale"][0])
    return np.repeat(scale, shape[-1] // scale.shape[-1], -1)


@pytest.mark.parametrize("shape", [(5, 48), (130, 272), (3, 40, 32)], ids=str)
@pytest.mark.parametrize(("name", "group"), SCHEMES)
def test_every_number_is_the_nearest_code(tmp_path: Path, name: str, group: int | None, shape: tuple[int, ...]) -> None:
    scheme = rounding_scheme(name, group)
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    weight[..., 1, :] = 0
    weight[..., 2, :16] *= 1e-6
    stored = scheme.quantise(weight)
    assert {last: (array.shape, array.dtype.name) for last, array in stored.items()} == dict(scheme.stored(shape))
    save = {f"a.{last}": array for last, array in stored.items()}
    save_file(save, tmp_path / "m.safetensors")
    file = open_safetensors(tmp_path / "m.safetensors")
    hints = read_settings({"quantization_config": scheme.settings([])}, None).hints
    grouped = group_tensors(file.tensors, file.read_stored, hints)
    assert not grouped.faults
    values = dequantise(grouped.quantised["a.weight"], file.read_stored).astype(np.float64)
    step = scale_of_numbers(stored, scheme, shape)
    codes = CODES[name]
    with np.errstate(all="ignore"):
        units = np.where(step > 0, weight / step, 0)
    # Beyond the largest code it is the largest one; between two, the nearer.
    indices = np.clip(np.searchsorted(codes, units), 1, len(codes) - 1)
    nearest = np.where(units - codes[indices - 1] < codes[indices] - units, codes[indices - 1], codes[indices])
    tie = np.abs(np.abs(units - codes[indices - 1]) - np.abs(codes[indices] - units)) < 1e-5 * np.abs(
        codes[indices] - codes[indices - 1]
    )
    expected = np.where(tie, values, nearest * step)
    np.testing.assert_allclose(values, expected, rtol=3e-7, atol=1e-30)
    assert tie.mean() < 0.3 and not np.isnan(values).any() and (values[..., 1, :] == 0).all()
    # The largest number of a group has the largest code, to the rounding of the scale.
    largest = {"fp8-block": 448, "int8": 127.5, "int4": 7.5, "nvfp4": 6}[name]
    rounding = 2**-4 if name == "nvfp4" else 2**-8
    assert abs(np.abs(units[..., 0, :]).max() / largest - 1) <= rounding or name == "fp8-block"
    assert abs(np.abs(units[..., 3:, :]).max() / largest - 1) <= rounding


def test_ties_go_to_even() -> None:
    weight = np.zeros((1, 16), np.float32)
    weight[0, :8] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]
    stored = RoundingScheme("nvfp4").quantise(weight)
    codes = stored["weight_packed"][0, :4]
    assert [float(E2M1[code]) for byte in codes for code in (byte & 15, byte >> 4)] == [6, 0, 1, 1, 2, 2, 4, 4]
