"""Parameters that stay packed in memory: which can, how large they are, and their arrays from the files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridlm.checkpoint.adapters import BoundAdapter
from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.header_check import ChosenSource, ReadPlan
from hybridlm.checkpoint.packed.layout import Packed, PackedLayout, Rows, packed_layout
from hybridlm.checkpoint.shards import ParameterPath, Shards
from hybridlm.quantised.health import lost_rows
from hybridlm.quantised.packed import PackedArrays, PackedForm
from models.ops.quantised_weight import QuantisedWeight
from models.weights.sources import ArraySlice


@dataclass(frozen=True)
class PackedParameters:
    """Parameters that stay packed, by the headers of a checkpoint.

    Attributes:
        layouts: path -> layout of the parameter in the files and in memory.
        plan: the tensors that will be read, if they were looked for; None for a saved model.
        divided: paths of parameters that would be packed on one device, but are plain on this mesh.
    """

    layouts: Mapping[ParameterPath, PackedLayout] = field(default_factory=dict)
    plan: ReadPlan | None = None
    divided: tuple[ParameterPath, ...] = ()

    @property
    def types(self) -> dict[ParameterPath, QuantisedWeight]:
        """Path -> parameter with types in the place of arrays."""
        return {path: layout.types() for path, layout in self.layouts.items()}


def laid_out(
    forms: Mapping[ParameterPath, PackedForm],
    shards: Mapping[ParameterPath, Shards],
    dtype: str,
    products: Packed,
    plan: ReadPlan | None = None,
) -> PackedParameters:
    """Return packed parameters of these forms, each on the devices of the plain one.

    Args:
        forms: path -> form in the files.
        shards: path -> layout of the plain parameter.
        dtype, products: as for `PackedLayout`.
        plan: the tensors that will be read.
    """
    layouts = {path: packed_layout(form, shards[path], dtype, products) for path, form in forms.items()}
    packed = {path: layout for path, layout in layouts.items() if layout is not None}
    return PackedParameters(packed, plan, tuple(path for path in layouts if path not in packed))


def packed_forms(
    checkpoint: CheckpointDirectory, plan: ReadPlan, adapters: Sequence[BoundAdapter] = ()
) -> dict[ParameterPath, PackedForm]:
    """Return the form of each parameter that can stay packed: all of its tensors have one form, row by row.

    A parameter that an adapter is merged into does not stay packed.
    """
    forms = {}
    for choice in plan.choices:
        if any(adapter.touches(choice.weight) for adapter in adapters):
            continue
        if choice.weight.float32 or not choice.source.keeps_rows or len(choice.weight.shape) not in (2, 3):
            continue
        found = {checkpoint.packed_form(name) for name in choice.names.values()}
        (form,) = found if len(found) == 1 else (None,)
        if form is not None and form.inputs == choice.weight.shape[-1]:
            forms[choice.weight.path] = form
    return forms


def load_packed(
    checkpoint: CheckpointDirectory, choice: ChosenSource, layout: PackedLayout
) -> tuple[QuantisedWeight, tuple[str, ...]]:
    """Return a parameter on its devices, and a sentence for each tensor with lost rows.

    Args:
        checkpoint: the files.
        choice: the parameter and its tensors.
        layout: from `packed_parameters`.

    Raises:
        CheckpointError: a scale or a code that is not finite.
    """
    weight, source = choice.weight, choice.source
    lost: dict[str, None] = {}

    def rows(window: ArraySlice) -> Iterator[Rows]:
        for piece in choice.pieces(checkpoint, window):
            name = choice.names[piece.name]
            read = checkpoint.read_packed(name, layout.form)
            if zero := lost_rows(_significant(read)):
                lost[f"{name}: {zero} of its rows are zero: it was quantised too coarsely"] = None
            # A window of all columns, of which each array has another number.
            taken = (*piece.taken[: len(weight.shape) - 1], ...)
            yield piece.place, {role: source.take(array, taken) for role, array in _roles(read).items()}

    return layout.build(rows), tuple(lost)


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
