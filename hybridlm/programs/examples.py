"""Example arguments of steps, to prove and compile them, with rows as ShapeDtypeStructs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.programs.shapes import EditShape, Shape
from hybridlm.requests.probes import probe_inputs
from hybridlm.requests.sequence import empty_changes, sampling_arrays
from hybridlm.sampling.logit_changes import mask_words
from hybridlm.steps.edit import no_edits, types_in
from hybridlm.steps.operands import Batch, Chosen, StepInputs
from hybridlm.steps.structure import Rows, Structure


def example_arguments(
    shape: Shape | EditShape,
    params: tuple[Any, ...],
    rows: Callable[[int, int], Rows],
    placement: Placement,
    structure: Structure,
    hidden: int,
    vocab_size: int,
) -> tuple[Any, ...]:
    """Return example arguments of one shape.

    Args:
        params: may be abstract.
        rows: (rows, pages) -> ShapeDtypeStructs of a pool.
    """
    if isinstance(shape, EditShape):
        abstract = rows(shape.rows, shape.pages)
        edits = no_edits(shape.lanes, types_in(structure, abstract))
        return abstract, *placement.examples((np.arange(shape.lanes, dtype=np.int32), edits))
    idle, size, parts = [None] * shape.lanes, (shape.lanes, shape.tokens), dict[str, Any]()
    if shape.step == "score":
        parts["targets"] = np.zeros(size, np.int32)
        if shape.chosen is not None:
            parts["chosen"] = Chosen(np.zeros((*size, shape.chosen), np.int32), np.ones(shape.lanes, np.float32))
    elif shape.step != "hidden":
        parts["sampling"], parts["sampling_mode"] = sampling_arrays(idle)
    if shape.step == "verify":
        parts["drafts"] = np.zeros(shape.lanes, np.int32)
    if shape.changes:
        parts["changes"] = empty_changes(shape.lanes, shape.changes, _mask_shape(shape, vocab_size))
    if shape.probes is not None:
        count = shape.probes.places if shape.step == "score" else 0
        places = np.zeros((shape.lanes, count), np.int32) if count else None
        parts["probes"] = probe_inputs(idle, shape.probes, hidden, places)
    table = np.zeros((shape.lanes, shape.blocks), np.int32) if shape.pages else None
    batch = Batch.of(idle, shape.tokens, np.arange(shape.lanes), table)
    return params, rows(shape.rows, shape.pages), placement.examples(StepInputs(batch, **parts))


def _mask_shape(shape: Shape, vocab_size: int) -> tuple[int, ...] | None:
    if not shape.masked:
        return None
    words = mask_words(vocab_size)
    return (shape.tokens, words) if shape.step == "verify" else (words,)
