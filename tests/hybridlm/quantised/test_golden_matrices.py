"""Matrices that bitsandbytes and torchao stored (tests/golden_matrices): the bits of the numbers that they make."""

from pathlib import Path

import numpy as np
import pytest
from packed_weights import packed_from_file

from hybridlm.checkpoint import ArrayFile, open_safetensors
from hybridlm.quantised import Hints, QuantisedTensor, dequantise, group_tensors

GOLDEN = Path(__file__).resolve().parents[2] / "golden_matrices"
SCHEMES = {
    "nf4": "nf4", "nf4-bfloat16": "nf4", "nf4-nested": "nf4", "nf4-stored-as-bfloat16": "nf4", "nf4-cut-block": "nf4",
    "nf4-experts": "nf4", "fp4": "fp4", "fp4-nested": "fp4", "llm-int8": "llm-int8", "float8-rows": "fp8-channel",
    "float8-tensor": "fp8-tensor", "float8-blocks": "fp8-block", "float8-experts": "fp8-channel", "int8-rows": "int8",
    "int8-tensor": "int8", "int8-groups": "int8", "int8-zeros": "int8", "intx-int4": "int8", "intx-int3-zeros": "int8",
    "int4": "int4-affine", "int4-experts": "int4-affine", "int4-symmetric": "int4-affine",
}  # fmt: skip


def read(name: str) -> tuple[QuantisedTensor, ArrayFile, np.ndarray]:
    """Return the weight, its file, and the numbers of the library."""
    file = open_safetensors(GOLDEN / f"{name}.safetensors")
    grouped = group_tensors(file.tensors, file.read_stored, Hints(), lambda _: file.metadata)
    assert not grouped.faults and set(grouped.parts) == set(file.tensors)
    return grouped.quantised["layer.weight"], file, open_safetensors(GOLDEN / "expected.safetensors").read(name)


def test_every_file_has_a_scheme() -> None:
    assert {file.stem for file in GOLDEN.glob("*.safetensors")} == SCHEMES.keys() | {"expected"}


@pytest.mark.parametrize("name", SCHEMES)
def test_numbers_are_the_librarys_bit_for_bit(name: str) -> None:
    tensor, file, expected = read(name)
    assert (tensor.scheme, tensor.shape) == (SCHEMES[name], expected.shape)
    numbers = dequantise(tensor, file.read_stored)
    assert numbers.dtype == np.float32
    np.testing.assert_array_equal(numbers.astype(expected.dtype), expected)


@pytest.mark.parametrize("name", [name for name in SCHEMES if not name.startswith(("nf4", "fp4"))])
def test_packed_numbers_are_the_librarys_bit_for_bit(name: str) -> None:
    tensor, file, expected = read(name)
    weight = packed_from_file(tensor, file, products="whole")
    # A zero point is stored where the library stores one that is not zero.
    assert (weight.zero is not None) == (name.endswith("zeros") or name.startswith("int4"))
    np.testing.assert_array_equal(np.asarray(weight.numbers()).astype(expected.dtype), expected)
