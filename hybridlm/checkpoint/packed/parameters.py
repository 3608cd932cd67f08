"""Parameters that stay packed in memory: which can, how large they are, and their arrays from the files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from hybridlm.checkpoint.adapter import BoundAdapter
from hybridlm.checkpoint.cast import aligned_empty
from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.header_check import ChosenSource, ReadPlan
from hybridlm.checkpoint.report import ParameterPath
from hybridlm.quantised.health import lost_rows
from hybridlm.quantised.packed import PackedArrays, PackedForm, packed_form
from models.ops.quantised_weight import TWO_IN_A_BYTE, QuantisedWeight

Packed = Literal["in blocks", "whole"]
"""Products of packed weights: a block of rows at a time, as on a CPU, or dequantised inside of the product."""


@dataclass(frozen=True)
class PackedParameters:
    """Parameters that stay packed, as the headers of a checkpoint say.

    Attributes:
        products: how their products are computed.
        types: path -> parameter with types in the place of arrays.
        plan: the tensors that will be read, if they were looked for; None for a saved model or one without codes.
        forms: path -> form in which a parameter is read from these tensors.
    """

    products: Packed
    types: dict[ParameterPath, QuantisedWeight] = field(default_factory=dict)
    plan: ReadPlan | None = None
    forms: Mapping[ParameterPath, PackedForm] = field(default_factory=dict)

    def without(self) -> "PackedParameters":
        """Return the same checkpoint with all parameters as plain arrays."""
        return PackedParameters(self.products, plan=self.plan)


def packed_forms(
    checkpoint: CheckpointDirectory, plan: ReadPlan, adapters: Sequence[BoundAdapter] = ()
) -> dict[ParameterPath, PackedForm]:
    """Return the form of each parameter that can stay packed: all of its tensors have one form, row by row.

    A parameter that an adapter is merged into is none.
    """
    forms = {}
    for choice in plan.choices:
        if any(adapter.touches(choice.weight) for adapter in adapters):
            continue
        if choice.weight.float32 or not choice.source.keeps_rows or len(choice.weight.shape) not in (2, 3):
            continue
        found = {_form(checkpoint, name) for name in choice.names.values()}
        (form,) = found if len(found) == 1 else (None,)
        if form is not None and form.inputs == choice.weight.shape[-1]:
            forms[choice.weight.path] = form
    return forms


def _form(checkpoint: CheckpointDirectory, name: str) -> PackedForm | None:
    tensor = checkpoint.grouped.quantised.get(name)
    if tensor is None:
        return None
    return packed_form(tensor, checkpoint.info(tensor.parts["scale"]).dtype, checkpoint.read_part)


def packed_type(shape: tuple[int, ...], form: PackedForm, dtype: str, packed: Packed) -> QuantisedWeight:
    """Return a packed parameter with types in the place of arrays.

    Args:
        shape: of the parameter.
        form: its packed form.
        dtype: that its numbers are rounded to in products.
        packed: how products are computed.
    """

    def typed(width: int, kind: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*shape[:-1], width), jnp.dtype(kind))

    codes = "int8" if form.kind == "int8" else "uint8"
    return QuantisedWeight(
        typed(form.inputs // 2 if form.kind in TWO_IN_A_BYTE else form.inputs, codes),
        typed(form.groups, form.scale_dtype),
        typed(1, "float32") if form.whole else None,
        typed(form.groups, codes) if form.zero else None,
        form.kind,
        form.inputs,
        dtype,
        packed == "in blocks",
    )


def load_packed(
    checkpoint: CheckpointDirectory, choice: ChosenSource, form: PackedForm, dtype: str, packed: Packed
) -> tuple[QuantisedWeight, tuple[str, ...]]:
    """Return a parameter of a form, on JAX's default device, and a sentence for each tensor whose rows were lost.

    Args:
        checkpoint: the files.
        choice: the parameter and its tensors.
        form: from `packed_forms`.
        dtype: that its numbers are rounded to in products.
        packed: how products are computed.

    Raises:
        CheckpointError: a scale or a code that is not finite.
    """
    weight, source = choice.weight, choice.source
    results: dict[str, np.ndarray] = {}
    lost: dict[str, None] = {}
    every = tuple(slice(None) for _ in weight.shape)
    for piece in source.pieces(every, weight.shape):
        name = choice.names[piece.name]
        read = checkpoint.read_packed(name, form)
        if zero := lost_rows(_significant(read)):
            lost[f"{name}: {zero} of its rows are zero: it was quantised too coarsely"] = None
        for role, array in _roles(read).items():
            if role not in results:
                results[role] = aligned_empty((*weight.shape[:-1], array.shape[-1]), array.dtype)
            results[role][(*piece.place, ...)] = source.take(array, piece.taken)
    arrays: Mapping[str, jax.Array] = jax.block_until_ready(
        {role: jax.device_put(array) for role, array in results.items()}
    )
    made = QuantisedWeight(
        arrays["codes"],
        arrays["scale"],
        arrays.get("whole"),
        arrays.get("zero"),
        form.kind,
        form.inputs,
        dtype,
        packed == "in blocks",
    )
    return made, tuple(lost)


def _roles(packed: PackedArrays) -> dict[str, np.ndarray]:
    every = {"codes": packed.codes, "scale": packed.scale, "whole": packed.whole, "zero": packed.zero}
    return {role: array for role, array in every.items() if array is not None}


def _significant(packed: PackedArrays) -> np.ndarray:
    """Return an array that is zero where the numbers are, without dequantising them."""
    if packed.zero is not None:
        return np.ones((1, 1), np.uint8)
    kind = packed.form.kind
    if kind == "int4":
        return packed.codes ^ np.uint8(0x88)
    return packed.codes & {"e4m3": np.uint8(0x7F), "e2m1": np.uint8(0x77), "int8": np.int8(-1)}[kind]
