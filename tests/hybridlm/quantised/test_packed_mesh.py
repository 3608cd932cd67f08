"""Packed weights over a mesh: each device has the codes and scales of its numbers."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from comparison import TOLERANCES
from jax.sharding import NamedSharding, PartitionSpec
from near_ties import check_same_samples
from random_checkpoint import FAMILIES, MESHES, write_random_checkpoint

import hybridlm
from hybridlm import EngineConfig
from hybridlm.checkpoint import LoadedWeights, Shards, load_parameters, packed_parameters
from hybridlm.checkpoint.model import open_model
from hybridlm.checkpoint.packed.layout import packed_layout
from hybridlm.checkpoint.quantise import quantise_checkpoint
from hybridlm.devices.placement import Placement
from hybridlm.engine.memory import weight_bytes
from hybridlm.quantised.packed import PackedForm
from models import Segment, ShardedDim
from models.ops.quantised_weight import QuantisedWeight

SCHEMES = [("fp8-block", None), ("int8", None), ("int8", 16), ("int4", 8), ("nvfp4", None)]
SETTINGS: dict[str, Any] = {"context": 64, "dtype": "float32", "chunk": 5, "compilation_cache": False}
Sizes = tuple[int, int, int]


def copy_of(name: str, folder: Path, scheme: str, group: int | None, **fields: Any) -> Path:
    original = write_random_checkpoint(name, folder / "original", **{**FAMILIES.get(name, {}), **fields})
    quantise_checkpoint(original, folder / "quantised", scheme=scheme, group_size=group)
    return folder / "quantised"


def parameters(folder: Path, sizes: Sizes, packed: bool) -> tuple[LoadedWeights, int]:
    """Parameters over a mesh, and the bytes that memory is checked with."""
    model = open_model(folder)
    _, family, config = model
    placement = EngineConfig(mesh=hybridlm.mesh(*sizes)).place()
    weights = family.weights(config)
    shards = placement.shards(weights, family.abstract(config).sharded_dims())
    saved = packed_parameters(model, "float32", "whole", shards=shards) if packed else None
    out = load_parameters(model, "float32", shards=shards, packed=saved)
    layouts = {} if saved is None else saved.layouts
    if saved is not None:
        for path, typed in saved.types.items():
            tree = jax.tree.map(
                lambda a, b: (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding), typed, out.arrays[path]
            )
            assert all(jax.tree.leaves(tree)) and jax.tree.structure(typed) == jax.tree.structure(out.arrays[path])
    return out, weight_bytes(weights, "float32", shards, AnAccelerator(placement.mesh), layouts)


class AnAccelerator(Placement):
    """Devices with their own memory."""

    @property
    def platform(self) -> str:
        return "gpu"


def on_a_device(item: Any, device: Any) -> Any:
    return jax.tree.map(
        lambda array: next(np.asarray(part.data) for part in array.addressable_shards if part.device == device), item
    )


@jax.jit
def numbers_of(weight: QuantisedWeight) -> jax.Array:
    return weight.numbers()


def check_shards(folder: Path, sizes: Sizes) -> None:
    actual, counted = parameters(folder, sizes, packed=True)
    plain, _ = parameters(folder, sizes, packed=False)
    assert [path for path, array in actual.arrays.items() if isinstance(array, QuantisedWeight)]
    for device in (jax.devices()[0], jax.devices()[np.prod(sizes) - 1]):
        local = {path: on_a_device(array, device) for path, array in actual.arrays.items()}
        assert counted == sum(array.nbytes for array in local.values())
        for path, expected in plain.arrays.items():
            item = local[path]
            numbers = numbers_of(item) if isinstance(item, QuantisedWeight) else item
            # A divisor of NVFP4 is inverted once, when the weight is read.
            error = 2**-23 if isinstance(item, QuantisedWeight) and item.whole is not None else 0
            np.testing.assert_allclose(numbers, on_a_device(expected, device), rtol=error, err_msg=str(path))


@pytest.mark.each_value
@pytest.mark.parametrize(("scheme", "group"), SCHEMES)
@pytest.mark.parametrize("sizes", [(1, 4, 1), (2, 2, 2)], ids=str)
def test_each_device_has_its_numbers(tmp_path: Path, scheme: str, group: int | None, sizes: Sizes) -> None:
    check_shards(copy_of("sparse_base", tmp_path, scheme, group), sizes)


def test_groups_that_devices_divide() -> None:
    """Half a group becomes a group; a fourth is too narrow or no whole byte."""
    mesh = hybridlm.mesh(model=4)
    spec = NamedSharding(mesh, PartitionSpec(None, "model"))

    def groups(kind: Any, inputs: int, group: int) -> int | None:
        form = PackedForm(kind, inputs, inputs // group, "bfloat16", False, None)
        shards = Shards((6, inputs), (ShardedDim(1, "model", (Segment(inputs, inputs),)),), spec)
        layout = packed_layout(form, shards)
        return None if layout is None else layout.groups

    assert (groups("int8", 128, 32), groups("int8", 64, 32), groups("int8", 48, 16)) == (4, 4, None)
    assert (groups("int8", 36, 36), groups("int4", 36, 36), groups("int4", 64, 64)) == (4, None, 4)


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
    packed = [name for name, each in over.params.items() if isinstance(each, QuantisedWeight)]
    assert packed == [name for name, each in lm.params.items() if isinstance(each, QuantisedWeight)]
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
