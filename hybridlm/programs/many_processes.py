"""The compiled steps in several processes together, with a check in every step that all have the same operands."""

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.programs.programs import Programs
from hybridlm.programs.runner import Examples, MovedArrays, Runner
from hybridlm.programs.shapes import AnyShape, CopyShape, Shape
from hybridlm.rows.parts import PartShape
from hybridlm.rows.pool import RowPool
from hybridlm.steps.operands import Batch
from hybridlm.steps.structure import Rows
from ir_passes.host.row_ledger import Label

MAP_FIELDS = ("slot that is read", "slot that is written")


class ManyProcesses(Runner):
    """Runs the compiled steps in all processes of a group, whose schedulers dispatch the same ones.

    Every method that runs a step raises as `ProcessGroup.call`.

    Args:
        programs, placement: as for `Runner`.
        group: the processes.
    """

    def __init__(self, programs: Programs, placement: Placement, group: ProcessGroup):
        super().__init__(programs, placement)
        self.group = group

    def run(
        self,
        shape: Shape,
        examples: Examples,
        params: tuple[jax.Array, ...],
        pool: RowPool,
        batch: Batch,
        operands: tuple[Any, ...],
        *,
        owners: Sequence[Any],
        counts: np.ndarray | None,
    ) -> tuple[Any, Rows]:
        named, _ = jax.tree_util.tree_flatten_with_path((batch, operands))
        fields = {getattr(path[-1], "name", f"operand {i}"): _digest(one) for i, (path, one) in enumerate(named)}
        program = self.compiled(shape, examples)
        given = self.placement.put((*batch, *operands))
        outputs, rows = self.group.call(shape, program, (params, pool.take(), *given), fields)
        return self.group.replicate(outputs), rows

    def move(
        self,
        shape: CopyShape | PartShape,
        examples: Examples,
        target: MovedArrays,
        source: MovedArrays,
        maps: Sequence[np.ndarray],
        mark: Label | None = None,
    ) -> None:
        names = (*MAP_FIELDS, *(f"operand {i}" for i in range(2, len(maps))))
        fields = dict(zip(names, map(_digest, maps), strict=True))
        program = self.compiled(shape, examples)
        given = self.placement.put_whole(tuple(maps))
        target.put(*self.group.call(shape, program, (target.take(), source.look(), *given), fields))

    def compiled(self, shape: AnyShape, examples: Examples) -> Any:
        return self.group.agree_on_program(shape, lambda all_have: self.programs.compiled(shape, examples, all_have))

    def read(self, outputs: Any) -> Any:
        return self.group.read(outputs)


def _digest(operand: Any) -> int:
    return zlib.crc32(np.asarray(operand).tobytes())
