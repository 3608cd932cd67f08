"""Compiled steps in several processes; every step checks that operands are equal."""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.programs.jax_settings import under_settings
from hybridlm.programs.programs import Programs
from hybridlm.programs.runner import Examples, Move, PoolStep, Runner
from hybridlm.programs.shapes import AnyShape
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Rows

MAP_FIELDS = ("slot that is read", "slot that is written")


class ManyProcesses(Runner):
    """Runs compiled steps in all processes of a group; raises as `ProcessGroup.call`."""

    compiles_ahead = False

    def __init__(self, programs: Programs, placement: Placement, group: ProcessGroup):
        super().__init__(programs, placement)
        self.group, self.decisions = group, group.decisions

    @under_settings
    def run(self, step: PoolStep, examples: Examples) -> tuple[Any, Rows]:
        program, inputs = self.compiled(step.shape, examples), self.placement.put(step.inputs)
        args = step.params, step.pool.take(), inputs
        outputs, rows = self.group.call(step.shape, program, args, digests(step.inputs))
        return self.group.replicate(outputs), rows

    @under_settings
    def move(self, step: Move, examples: Examples) -> None:
        names = (*MAP_FIELDS, *(f"operand {i}" for i in range(2, len(step.maps))))
        fields = dict(zip(names, map(_digest, step.maps), strict=True))
        program, maps = self.compiled(step.shape, examples), self.placement.put_whole(tuple(step.maps))
        arrays = step.target.take(), step.source.look()
        step.target.put(*self.group.call(step.shape, program, (*arrays, *maps), fields))

    def compiled(self, shape: AnyShape, examples: Examples) -> Any:
        """Return the program, once every process has one with the same text."""
        return self.group.agree_on_program(shape, lambda all_have: self.programs.compiled(shape, examples, all_have))

    def read(self, outputs: Any) -> Any:
        """Return outputs on the host; names a process that has ended meanwhile."""
        return self.group.read(outputs)

    def run_worker(self, repeat: Callable[[ProcessGroup], None]) -> bool:
        if self.group.decisions.leads:
            return False
        repeat(self.group)
        return True


def digests(inputs: StepInputs) -> dict[str, int]:
    """Return digests by array name, such as "batch.tokens"."""
    leaves = jax.tree_util.tree_leaves_with_path(inputs)
    return {jax.tree_util.keystr(path, simple=True, separator="."): _digest(leaf) for path, leaf in leaves}


def _digest(operand: Any) -> int:
    return zlib.crc32(np.asarray(operand).tobytes())
