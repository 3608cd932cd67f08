"""Packed weights: of every form, with every code there is, and of files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import hybridlm
from hybridlm import EngineConfig
from hybridlm.checkpoint import ArrayFile, LoadedWeights, Shards, load_parameters, open_model, packed_parameters
from hybridlm.checkpoint.packed.layout import Packed, packed_layout
from hybridlm.devices.placement import Placement
from hybridlm.engine.memory import weight_bytes
from hybridlm.quantised import QuantisedTensor
from hybridlm.quantised.packed import PackedForm, pack, packed_form
from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes
from models.ops.quantised_weight import QuantisedWeight

Form = tuple[Codes, bool, bool | Literal["offsets"]]
FORMS: list[Form] = [("int8", False, False), ("int8", False, True), ("int4", False, False), ("int4", False, True)]
FORMS.extend([("int8", False, "offsets"), ("int4", False, "offsets")])
FORMS.extend([("int8", True, False), ("e4m3", False, False), ("e2m1", False, False), ("e2m1", True, False)])
"""Kind of codes, whether there are second scales, and whether zero points or offsets."""


def weight_of(
    shape: tuple[int, ...],
    groups: int,
    form: Form,
    dtype: str = "bfloat16",
    scales: str = "bfloat16",
) -> QuantisedWeight:
    """Every code there is, but NaN; scales of many magnitudes."""
    kind, full, zero = form
    rng = np.random.default_rng(sum(shape) + groups)
    width = shape[-1] // 2 if kind in TWO_IN_A_BYTE else shape[-1]
    codes = rng.integers(0, 256, (*shape[:-1], width)).astype(np.uint8)
    if kind == "e4m3":
        codes = np.where(codes & 127 == 127, 3, codes).astype(np.uint8)
    codes = codes.view(np.int8) if kind == "int8" else codes
    scale = rng.normal(size=(*shape[:-1], groups)) * 2.0 ** rng.integers(-9, 9, (*shape[:-1], groups))
    zeros = rng.integers(0, 16, scale.shape).astype(codes.dtype)
    offsets = (rng.normal(size=scale.shape) * np.abs(scale) * 20).astype(np.float32)
    return QuantisedWeight(
        jnp.asarray(codes),
        jnp.asarray(scale, scales),
        jnp.asarray(rng.normal(size=(*shape[:-1], 1)), jnp.float32) if full else None,
        None if not zero else jnp.asarray(offsets if zero == "offsets" else zeros),
        kind,
        dtype,
    )


def packed_names(params: Mapping[Any, Any]) -> list[Any]:
    """Return the names of the parameters that hold codes."""
    return [name for name, array in params.items() if isinstance(array, QuantisedWeight)]


def packed_from(form: PackedForm, parts: Mapping[str, np.ndarray], dtype: str = "float32") -> QuantisedWeight:
    """Return the packed weight of these arrays: "codes", "scale" and, where there are some, "whole" and "zero"."""
    codes, scale, whole, zero = (
        jnp.asarray(parts[role]) if role in parts else None for role in ("codes", "scale", "whole", "zero")
    )
    assert codes is not None and scale is not None
    return QuantisedWeight(codes, scale, whole, zero, form.kind, dtype)


def packed_from_file(
    tensor: QuantisedTensor, file: ArrayFile, dtype: str = "float32", products: Packed = "in blocks"
) -> QuantisedWeight:
    """Return a weight of a file as it is packed on one device; its layout is checked."""
    form = packed_form(tensor, file.tensors[tensor.parts["scale"]].dtype, file.read_stored)
    assert form is not None
    layout = packed_layout(form, Shards(tensor.shape), dtype, products)
    assert layout is not None
    weight, typed = packed_from(form, pack(tensor, file.read_stored, form), dtype), layout.types()
    assert typed.nbytes == weight.nbytes
    arrays, types = ([(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (weight, typed))
    assert arrays == types
    return weight


class AnAccelerator(Placement):
    """Devices with their own memory."""

    @property
    def platform(self) -> str:
        return "gpu"


def load_over_mesh(folder: Path, sizes: tuple[int, int, int], packed: bool) -> tuple[LoadedWeights, int]:
    """Load parameters over a mesh; return them and the bytes that memory is checked with."""
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
