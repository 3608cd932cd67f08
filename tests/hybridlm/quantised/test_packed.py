"""Weights that stay packed: the numbers of their dequantised form, product by product."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import packed_from_file
from quantised_checkpoint import LAYOUTS, named
from quantised_files import group

from hybridlm.checkpoint import ArrayFile
from hybridlm.families import linear
from hybridlm.quantised import QuantisedTensor, dequantise
from hybridlm.quantised.packed import packed_form

PACKED = [name for name in LAYOUTS if not name.endswith(("order", "int3")) and not name.startswith(("nf4", "fp4"))]


def read(tmp_path: Path, layout: str, size: tuple[int, int]) -> tuple[QuantisedTensor, ArrayFile]:
    _, config, quantise, _ = LAYOUTS[layout]
    weight = np.random.default_rng(3).normal(size=size) * np.linspace(0.1, 3, size[0])[:, None]
    grouped, file = group(tmp_path, named("a.weight", quantise(weight).tensors), config)
    return grouped.quantised["a.weight"], file


@pytest.mark.each_value
@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("size", [(48, 160), (160, 320)], ids=str)
def test_numbers(tmp_path: Path, layout: str, size: tuple[int, int]) -> None:
    tensor, file = read(tmp_path, layout, size)
    expected = dequantise(tensor, file.read_stored)
    weight = packed_from_file(tensor, file)
    assert weight.shape == size
    # A divisor is inverted once, when the weight is read.
    np.testing.assert_allclose(
        jax.jit(lambda packed_weight: packed_weight.numbers())(weight), expected, rtol=2**-23 if tensor.divided else 0
    )
    narrow = packed_from_file(tensor, file, "bfloat16")
    if not tensor.divided:
        np.testing.assert_array_equal(narrow.numbers(), jnp.asarray(expected).astype(jnp.bfloat16))


@pytest.mark.each_value
@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, rows: int) -> None:
    # Several blocks; the last one overlaps its predecessor.
    monkeypatch.setattr("models.ops.quantised_weight.MAX_BLOCK_NUMBERS", 160 * 10)
    tensor, file = read(tmp_path, layout, (48, 160))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 160)), jnp.float32)
    ids = jnp.array([[5, 47], [0, -1], [48, 5]])
    for dtype in ("float32", "bfloat16"):
        weight = packed_from_file(tensor, file, dtype)
        plain = jnp.asarray(dequantise(tensor, file.read_stored)).astype(dtype)
        product = jax.jit(linear)(x, weight)
        np.testing.assert_allclose(product, linear(x, plain), rtol=2e-6, atol=2e-5)
        table_rows = jax.jit(type(weight).take)(weight, ids)
        valid = np.array([[True, True], [True, False], [False, True]])
        assert np.isnan(np.asarray(table_rows)[~valid]).all()
        expected = np.asarray(weight.numbers().astype(jnp.float32))[[5, 47, 0, 5]]
        np.testing.assert_array_equal(np.asarray(table_rows)[valid], expected)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in PACKED])
def test_schemes_without_a_packed_form_are_dequantised(tmp_path: Path, layout: str) -> None:
    tensor, file = read(tmp_path, layout, (48, 160))
    assert packed_form(tensor, file.tensors[tensor.parts["scale"]].dtype, file.read_stored) is None


@pytest.mark.parametrize("layout", ["ct-fp8-rows", "ct-nvfp4", "ct-mxfp4"])
def test_zero_points_of_floats_are_left_out(tmp_path: Path, layout: str) -> None:
    """Old files of compressed-tensors hold zeros, which no array in memory would be filled with."""
    _, config, quantise, _ = LAYOUTS[layout]
    tensors = quantise(np.random.default_rng(3).normal(size=(48, 160))).tensors
    points = ("U8", np.zeros(tensors["_scale"][1].shape, np.uint8))
    grouped, file = group(tmp_path, named("a.weight", {**tensors, "_zero_point": points}), config)
    tensor = grouped.quantised["a.weight"]
    assert "zero" in tensor.parts
    weight = packed_from_file(tensor, file)
    assert weight.zero is None
    np.testing.assert_allclose(weight.numbers(), dequantise(tensor, file.read_stored), rtol=2**-23)


@pytest.mark.parametrize(("columns", "groups"), [(64, 1), (128, 1), (256, 2), (192, 3), (130, None)])
def test_blocks_that_columns_do_not_fill(tmp_path: Path, columns: int, groups: int | None) -> None:
    tensor, file = read(tmp_path, "modelopt-fp8-blocks", (130, columns))
    form = packed_form(tensor, "F32", file.read_stored)
    assert (None if form is None else form.groups) == groups
    if groups is not None:
        np.testing.assert_array_equal(packed_from_file(tensor, file).numbers(), dequantise(tensor, file.read_stored))
