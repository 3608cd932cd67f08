"""Operations of an engine as broadcast to other processes, and their decoding there."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.multiprocess.records import Operation
from hybridlm.programs.shapes import Shape
from hybridlm.rows.parts import RowPart
from hybridlm.sampling.sampling import Sampling
from hybridlm.steps.operands import Batch
from hybridlm.steps.score import Chosen

STEPS = ("generate", "verify", "score", "hidden")
PARTS: tuple[RowPart, ...] = ("state", "span")
RUN_FIELDS = ("pool", "rows", "step", "lanes", "tokens per lane", "log-probabilities", "mtp_drafts", "chosen ids")
COPY_FIELDS = (
    "source",
    "rows of the source",
    "target",
    "rows of the target",
    "slot that is read",
    "slot that is written",
)
KEEP_FIELDS = ("pool", "rows", "part", "buffers", "position", "slot", *(f"operand {i}" for i in range(3)))
_SAMPLING_FIELDS = (*Sampling._fields, "sampling_mode")

Fields = tuple[str, ...]


def run_operation(pool: int, rows: int, shape: Shape, operands: Sequence[Any]) -> tuple[Operation, Fields]:
    """Encode a step on the rows of a pool.

    Args:
        pool, rows: its number and its size.
        shape: the program.
        operands: operands of the step, on the host.

    Raises:
        ValueError: the step has a logits processor, which cannot be broadcast.
    """
    if shape.processor is not None:
        raise ValueError("logits_processor: a function of yours cannot be sent to other processes; load in one process")
    top = -1 if shape.top is None else shape.top
    chosen = -1 if shape.chosen is None else shape.chosen
    numbers = (pool, rows, STEPS.index(shape.step), shape.lanes, shape.tokens, top, shape.mtp_drafts, chosen)
    score = ("targets",) if shape.chosen is None else ("targets", *Chosen._fields)
    own = {"hidden": (), "score": score, "verify": ("drafted", *_SAMPLING_FIELDS), "generate": _SAMPLING_FIELDS}[
        shape.step
    ]
    return Operation("run", numbers, tuple(jax.tree.leaves(operands))), (*RUN_FIELDS, *Batch._fields, *own)


def run_of(operation: Operation) -> tuple[int, int, Shape, Batch, tuple[Any, ...]]:
    """Decode `run_operation`: the pool, its rows, the program and the operands."""
    pool, rows, step, lanes, tokens, top, mtp_drafts, chosen = operation.numbers
    shape = Shape(
        STEPS[step], lanes, tokens, None if top < 0 else top, None, mtp_drafts, None if chosen < 0 else chosen
    )
    batch, rest = Batch(*operation.arrays[:4]), operation.arrays[4:]
    if shape.step == "hidden":
        return pool, rows, shape, batch, ()
    if shape.step == "score":
        return pool, rows, shape, batch, rest if shape.chosen is None else (rest[0], _chosen(*rest[1:]))
    first = len(rest) - len(_SAMPLING_FIELDS)
    return pool, rows, shape, batch, (*rest[:first], Sampling(*rest[first:-1]), rest[-1])


def _chosen(token_ids: Any, temperature: Any) -> Chosen:
    return Chosen(token_ids, temperature)


def copy_operation(numbers: tuple[int, int, int, int], maps: tuple[np.ndarray, np.ndarray]) -> tuple[Operation, Fields]:
    """Encode the copy of a row.

    Args:
        numbers: source and its rows, target and its rows.
        maps: int32 [1] each: the row that is read and the one that is written.
    """
    return Operation("copy", numbers, maps), COPY_FIELDS


def part_operation(
    buffers_id: int, part: RowPart, keep: bool, pool: int, rows: int, position: int, operands: Sequence[np.ndarray]
) -> tuple[Operation, Fields]:
    """Encode the copy of a part of a row into cached buffers, or back.

    Args:
        buffers_id: number of the cached buffers.
        part: the part.
        keep: whether it is copied out of the pool.
        pool, rows: number and size of the pool.
        position: see `CachedBuffers`.
        operands: int32 [1] each: the row, and the other operands of the step.
    """
    numbers = (pool, rows, PARTS.index(part), buffers_id, position)
    return Operation("keep" if keep else "restore", numbers, tuple(operands)), KEEP_FIELDS
