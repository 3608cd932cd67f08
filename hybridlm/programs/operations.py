"""The operations of an engine as they are told to other processes, and what these make of them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.multiprocess.records import Operation
from hybridlm.programs.shapes import Shape
from hybridlm.rows.parts import RowPart
from hybridlm.sampling.sampling import Sampling
from hybridlm.steps.operands import Batch

STEPS = ("generate", "verify", "score")
PARTS: tuple[RowPart, ...] = ("state", "span")
RUN_FIELDS = ("pool", "rows", "step", "lanes", "tokens per lane", "log-probabilities", "mtp_drafts")
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
    """A step on the rows of a pool.

    Args:
        pool, rows: its number and its size.
        shape: which program.
        operands: as the step takes them, on the host.

    Raises:
        ValueError: the step has a logits processor, which cannot be told.
    """
    if shape.processor is not None:
        raise ValueError("logits_processor: a function of yours cannot be sent to other processes; load in one process")
    top = -1 if shape.top is None else shape.top
    numbers = (pool, rows, STEPS.index(shape.step), shape.lanes, shape.tokens, top, shape.mtp_drafts)
    own = {"score": ("targets",), "verify": ("drafted", *_SAMPLING_FIELDS), "generate": _SAMPLING_FIELDS}[shape.step]
    return Operation("run", numbers, tuple(jax.tree.leaves(operands))), (*RUN_FIELDS, *Batch._fields, *own)


def run_of(operation: Operation) -> tuple[int, int, Shape, Batch, tuple[Any, ...]]:
    """The pool, its rows, the program and the operands of `run_operation`."""
    pool, rows, step, lanes, tokens, top, mtp_drafts = operation.numbers
    shape = Shape(STEPS[step], lanes, tokens, None if top < 0 else top, None, mtp_drafts)
    batch, rest = Batch(*operation.arrays[:4]), operation.arrays[4:]
    if shape.step == "score":
        return pool, rows, shape, batch, rest
    first = len(rest) - len(_SAMPLING_FIELDS)
    return pool, rows, shape, batch, (*rest[:first], Sampling(*rest[first:-1]), rest[-1])


def copy_operation(numbers: tuple[int, int, int, int], maps: tuple[np.ndarray, np.ndarray]) -> tuple[Operation, Fields]:
    """The copy of a row.

    Args:
        numbers: source and its rows, target and its rows.
        maps: int32 [1] each: the row that is read and the one that is written.
    """
    return Operation("copy", numbers, maps), COPY_FIELDS


def part_operation(
    buffers_id: int, part: RowPart, keep: bool, pool: int, rows: int, position: int, operands: Sequence[np.ndarray]
) -> tuple[Operation, Fields]:
    """A part of a row that is buffers_id, or put back.

    Args:
        buffers_id: number of the arrays that are buffers_id.
        part: which part.
        keep: whether it is moved out of the pool.
        pool, rows: number and size of the pool.
        position: see `CachedBuffers`.
        operands: int32 [1] each: the row, and those of the step that are its own.
    """
    numbers = (pool, rows, PARTS.index(part), buffers_id, position)
    return Operation("keep" if keep else "restore", numbers, tuple(operands)), KEEP_FIELDS
