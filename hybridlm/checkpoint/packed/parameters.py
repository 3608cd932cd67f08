"""Quantised parameters in packed form: selection, layouts, and arrays from files."""

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
from models.ops.quantised_codes import Codes
from models.ops.quantised_weight import QuantisedWeight
from models.weights.sources import ArraySlice


@dataclass(frozen=True)
class PackedParameters:
    """Parameters that stay packed, by the headers of a checkpoint.

    Attributes:
        plan: None for a saved model.
        divided: paths that are plain on this mesh, but packed on one device.
    """

    layouts: Mapping[ParameterPath, PackedLayout] = field(default_factory=dict)
    plan: ReadPlan | None = None
    divided: tuple[ParameterPath, ...] = ()

    @property
    def types(self) -> dict[ParameterPath, QuantisedWeight]:
        return {path: layout.types() for path, layout in self.layouts.items()}


def laid_out(
    forms: Mapping[ParameterPath, PackedForm],
    shards: Mapping[ParameterPath, Shards],
    dtype: str,
    products: Packed,
    plan: ReadPlan | None = None,
) -> PackedParameters:
    layouts = {path: packed_layout(form, shards[path], dtype, products) for path, form in forms.items()}
    packed = {path: layout for path, layout in layouts.items() if layout is not None}
    return PackedParameters(packed, plan, tuple(path for path in layouts if path not in packed))


def packed_forms(
    checkpoint: CheckpointDirectory, plan: ReadPlan, adapters: Sequence[BoundAdapter] = ()
) -> dict[ParameterPath, PackedForm]:
    """Return the form of each parameter that can stay packed.

    All its tensors have one form, its rows are their rows, and no adapter changes it.
    """
    forms = {}
    for choice in plan.choices:
        if any(adapter.touches(choice.weight) for adapter in adapters):
            continue
        if choice.weight.float32 or not choice.source.keeps_rows or len(choice.weight.shape) not in (2, 3):
            continue
        tensor_forms = {checkpoint.packed_form(name) for name in choice.names.values()}
        (form,) = tensor_forms if len(tensor_forms) == 1 else (None,)
        if form is not None and form.inputs == choice.weight.shape[-1]:
            forms[choice.weight.path] = form
    return forms


def load_packed(
    checkpoint: CheckpointDirectory, choice: ChosenSource, layout: PackedLayout
) -> tuple[QuantisedWeight, tuple[str, ...]]:
    """Build a parameter on its devices, with a sentence per tensor with lost rows.

    Raises:
        CheckpointError: a scale or a code that is not finite.
    """
    weight, source = choice.weight, choice.source
    lost: dict[str, None] = {}

    def rows(window: ArraySlice) -> Iterator[Rows]:
        for piece in choice.pieces(checkpoint, window):
            name = choice.names[piece.name]
            arrays = checkpoint.read_packed(name, layout.form)
            if zero := lost_rows(_significant(layout.form.kind, arrays)):
                lost[f"{name}: {zero} of its rows are zero: it was quantised too coarsely"] = None
            # All columns: the arrays have different numbers of columns.
            window_of_rows = (*piece.taken[: len(weight.shape) - 1], ...)
            yield piece.place, {role: source.take(array, window_of_rows) for role, array in arrays.items()}

    return layout.build(rows), tuple(lost)


def _significant(kind: Codes, packed: PackedArrays) -> np.ndarray:
    """Return an array with the zeros of the numbers, without dequantising."""
    if "zero" in packed:
        return np.ones((1, 1), np.uint8)
    codes = packed["codes"]
    if kind == "int4":
        return codes ^ np.uint8(0x88)
    return codes & {"e4m3": np.uint8(0x7F), "e2m1": np.uint8(0x77), "int8": np.int8(-1)}[kind]
