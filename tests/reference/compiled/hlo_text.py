"""HLO in words as XLA serializes it: programs of backends that are not there."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
from jaxlib._hlo import hlo_module_from_text

from ir_passes.jaxpr.jax_private import text_without_sources
from ir_passes.xla_audit.hlo import Module, read_module
from ir_passes.xla_audit.program import Allocation, Array, Buffers, Executable, Index, Slice

Place = tuple[str, Index]
"""Name of an instruction, and index of a part of its result."""

ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
"""A computation for `to_apply=add`."""


def serialized(text: str) -> bytes:
    """The HloModuleProto of a module that is written as XLA writes it."""
    return hlo_module_from_text(text).as_serialized_hlo_module_proto()


def module_of(text: str) -> Module:
    """Return what the audit reads of a module that is written as XLA writes it."""
    return read_module(serialized(text))


def placed(
    text: str, equal: Mapping[Place, Place] | None = None, platform: str = "gpu", chip: Collection[Place] = ()
) -> Executable:
    """Place the values of a program in separate bytes, or in given ones.

    Args:
        equal: place of a value -> the place in whose bytes it lies.
        chip: places in memory of the chip.
    """
    read = module_of(text)
    ids = {instruction.name: instruction.id for instruction in read.instructions.values()}
    arrays: dict[tuple[int, Index], Array] = {
        (i.id, index): array for i in read.instructions.values() for index, array in i.arrays.items()
    }
    on_chip = {(ids[name], index) for name, index in chip if name in ids}
    allocations = {
        i: Allocation(i, array.padded_bytes, None, False, False, False, key in on_chip)
        for i, (key, array) in enumerate(arrays.items())
    }
    slices = {key: Slice(i, 0, array.padded_bytes) for i, (key, array) in enumerate(arrays.items())}
    for (name, index), (other, target) in (equal or {}).items():
        slices[ids[name], index] = slices[ids[other], target]
    forwarded = {id for id, instruction in read.instructions.items() if instruction.opcode.endswith("-done")}
    slices = {key: place for key, place in slices.items() if key[0] not in forwarded}
    return Executable(read, Buffers(allocations, slices), {i: i for i in read.main.parameters}, platform, 0, "")


def text_of(compiled: jax.stages.Compiled) -> str:
    """Return a program's text without sources."""
    executable: Any = compiled.runtime_executable()
    return text_without_sources(executable.hlo_modules()[0])
