"""Packed weights over a mesh: each device has the codes and scales of its numbers."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command_line import run_command
from comparison import TOLERANCES
from near_ties import check_same_samples
from packed_weights import load_over_mesh, packed_names
from random_checkpoint import FAMILIES, MESHES, write_random_checkpoint

import hybridlm

SCHEMES = [("fp8-block", None), ("int8", None), ("int8", 16), ("int4", 8), ("nvfp4", None)]
SETTINGS: dict[str, Any] = {"context": 64, "dtype": "float32", "chunk": 5, "compilation_cache": False}
Sizes = tuple[int, int, int]


def copy_of(name: str, folder: Path, scheme: str, group: int | None, **fields: Any) -> Path:
    original = write_random_checkpoint(name, folder / "original", **{**FAMILIES.get(name, {}), **fields})
    run_command(
        "quantise", original, folder / "quantised", "--scheme", scheme, *(["--group-size", group] if group else [])
    )
    return folder / "quantised"


def on_a_device(item: Any, device: Any) -> Any:
    return jax.tree.map(
        lambda array: next(np.asarray(part.data) for part in array.addressable_shards if part.device == device), item
    )


@jax.jit
def numbers_of(weight: Any) -> jax.Array:
    return weight.numbers()


def check_shards(folder: Path, sizes: Sizes) -> None:
    actual, counted = load_over_mesh(folder, sizes, packed=True)
    plain, _ = load_over_mesh(folder, sizes, packed=False)
    packed = packed_names(actual.arrays)
    assert packed
    for device in (jax.devices()[0], jax.devices()[np.prod(sizes) - 1]):
        local = {path: on_a_device(array, device) for path, array in actual.arrays.items()}
        assert counted == sum(array.nbytes for array in local.values())
        for path, expected in plain.arrays.items():
            item = local[path]
            numbers = numbers_of(item) if path in packed else item
            # A divisor of NVFP4 is inverted once, when the weight is read.
            error = 2**-23 if path in packed and item.whole is not None else 0
            np.testing.assert_allclose(numbers, on_a_device(expected, device), rtol=error, err_msg=str(path))


@pytest.mark.each_value
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
@pytest.mark.parametrize("sizes", [(1, 4, 1), (2, 2, 2)], ids=str)
def test_each_device_has_its_numbers(tmp_path: Path, scheme: str, group: int | None, sizes: Sizes) -> None:
    check_shards(copy_of("sparse_base", tmp_path, scheme, group), sizes)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "sparse_base"])
def test_each_device_has_its_numbers_of_every_family(tmp_path: Path, name: str) -> None:
    folder = copy_of(name, tmp_path, "int8", None)
    for sizes in MESHES:
        check_shards(folder, sizes)


@pytest.mark.long
@pytest.mark.cpu_kernels
@pytest.mark.parametrize("sizes", [(1, 2, 2)], ids=str)
def test_generation_matches_one_device(tmp_path: Path, sizes: Sizes) -> None:
    """Lanes, heads and experts are split; every step is proved and audited."""
    folder = copy_of("sparse_base", tmp_path, "int4", 8, num_hidden_layers=2, full_attention_interval=2)
    lm = hybridlm.load(folder, lanes=2, certify="off", **SETTINGS)
    over = hybridlm.load(folder, lanes=2, mesh=hybridlm.mesh(*sizes), **SETTINGS)
    packed = packed_names(over.params)
    assert packed and packed == packed_names(lm.params)
    # Of one length, two chunks, so that few steps are compiled.
    prompts, settings = [[5, 6, 7, 3, 3, 20, 1], [9, 8, 7, 6, 5, 4, 12]], {"max_tokens": 6, "ignore_eos": True}
    actual, expected = over.generate(prompts, **settings), lm.generate(prompts, **settings)
    check_same_samples(lm, actual, expected, settings, TOLERANCES[lm.config.family.removesuffix("_text")])
    assert over.certificates and all(certificate.holds for certificate in over.certificates.values())
    declared = {item.about for certificate in over.certificates.values() for item in certificate.assumed}
    in_place = "hybridlm_conv_step", "hybridlm_recurrent_step"
    for kernel in ("row_product", "packed_product", "packed_expert_product", *in_place):
        assert any(about.startswith(kernel) for about in declared), (kernel, declared)
    assert over.engine.parameters_on_a_device[1] < lm.engine.parameters_on_a_device[1] / 2
    over.save(tmp_path / "saved")
    repeat = hybridlm.load(tmp_path / "saved", lanes=2, certify="off", **SETTINGS)
    for name in packed:
        np.testing.assert_array_equal(numbers_of(repeat.params[name]), numbers_of(lm.params[name]), err_msg=name)
