"""Audits of programs for GPUs and TPUs find every kind of wrong buffer assignment."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from virtual_targets import decode_executable

from hybridlm.compiler.contract import BoundContract
from ir_passes import FindingKind
from ir_passes.xla_audit.audit import audit_executable
from ir_passes.xla_audit.dataflow import LiveValues, live_values
from ir_passes.xla_audit.program import Buffers, Executable, Slice

PLATFORMS = [
    pytest.param("nvidia-h100", marks=pytest.mark.target_cuda),
    pytest.param("tpu-v5e", marks=pytest.mark.target_tpu),
]


Mutant = Callable[[Executable, LiveValues, BoundContract], Executable]


def moved(executable: Executable, key: tuple[int, tuple[int, ...]], place: Slice) -> Executable:
    buffers = executable.buffers
    return replace(executable, buffers=Buffers(buffers.allocations, {**buffers.slices, key: place}))


def two_live_values(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    scratch = [
        value
        for value in live.values
        if value.slice and executable.buffers.allocations[value.slice.allocation].is_temp and value.stop > value.start
    ]
    first, second = next(
        (value, two)
        for value in scratch
        for two in scratch
        if value.start < two.start < value.stop and value.slice != two.slice
    )
    assert first.slice is not None
    return moved(executable, (second.instruction.id, second.index), replace(first.slice, size=second.array.bytes))


def successor_elsewhere(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    aliases = dict(list(executable.module.aliases.items())[1:])
    return replace(executable, module=replace(executable.module, aliases=aliases))


def swapped_successors(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    aliases = executable.module.aliases
    first, second, *_ = aliases
    swapped = {**aliases, first: aliases[second], second: aliases[first]}
    return replace(executable, module=replace(executable.module, aliases=swapped))


def outside_its_allocation(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    fusion = next(fusion for fusion in live.values if fusion.slice and fusion.instruction.opcode == "fusion")
    assert fusion.slice is not None
    return moved(executable, (fusion.instruction.id, fusion.index), replace(fusion.slice, offset=1 << 40))


def no_place(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    fusion = next(
        fusion
        for fusion in live.values
        if fusion.slice and fusion.instruction.opcode == "fusion" and fusion.array.dtype != "tuple"
    )
    slices = {
        key: place for key, place in executable.buffers.slices.items() if key != (fusion.instruction.id, fusion.index)
    }
    return replace(executable, buffers=Buffers(executable.buffers.allocations, slices))


def over_a_turned_operand(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    """Write a product's result over an operand that it reads at other positions."""
    for value in live.values:
        product = value.instruction.name.startswith("gemm_fusion") or value.instruction.fusion_kind == "kOutput"
        if value.slice is None or not product or value.index:
            continue
        for operand in value.instruction.operands:
            for number in live.of[operand].values():
                other, size = live.values[number], value.slice.size
                if other.slice is not None and other.slice.size >= size and other.stop == value.start:
                    return moved(executable, (value.instruction.id, value.index), replace(other.slice, size=size))
    raise AssertionError("no product whose operand ends with it")


def written_while_copied(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    """Write another value to the bytes of a running copy."""
    for value in live.values:
        if value.instruction.opcode != "copy-start" or value.index != (0,) or value.slice is None:
            continue
        end = next(
            index for index, each in enumerate(live.executed)
            if each.opcode == "copy-done" and each.operands[0] == value.instruction.id
        )  # fmt: skip
        started = live.executed.index(value.instruction)
        for each in live.executed[started + 1 : end]:
            for index, number in live.made_by(each):
                other = live.values[number]
                if other.slice is not None and other.array.dtype != "tuple" and other.start > value.start:
                    return moved(executable, (each.id, index), replace(value.slice, size=other.slice.size))
    raise AssertionError("no copy beside other operations")


def copies_in_the_devices_memory(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    """Move every on-chip value to device memory, so that pools are copied there."""
    allocations = {
        number: replace(allocation, space=0) for number, allocation in executable.buffers.allocations.items()
    }
    return replace(executable, buffers=Buffers(allocations, executable.buffers.slices))


MUTANTS: dict[Mutant, FindingKind] = {
    two_live_values: FindingKind.OVERLAP,
    successor_elsewhere: FindingKind.NOT_IN_PLACE,
    swapped_successors: FindingKind.WRONG_SUCCESSOR,
    outside_its_allocation: FindingKind.MISPLACED,
    no_place: FindingKind.UNPLACED,
    over_a_turned_operand: FindingKind.READ_AFTER_WRITE,
}


TPU_MUTANTS: dict[Mutant, FindingKind] = {
    written_while_copied: FindingKind.OVERLAP,
    copies_in_the_devices_memory: FindingKind.POOL_COPY,
}


@pytest.fixture(scope="module", params=PLATFORMS)
def decode(request: pytest.FixtureRequest) -> tuple[Executable, BoundContract]:
    """The decode step of a model, as the audit reads it."""
    return decode_executable(request.param)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_of_a_buffer_assignment(mutant: Mutant, decode: tuple[Executable, BoundContract]) -> None:
    check_mutant(mutant, MUTANTS[mutant], *decode)


@pytest.mark.parametrize("decode", PLATFORMS[1:], indirect=True)
@pytest.mark.parametrize("mutant", TPU_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_of_rules_for_tpus(mutant: Mutant, decode: tuple[Executable, BoundContract]) -> None:
    check_mutant(mutant, TPU_MUTANTS[mutant], *decode)


def check_mutant(mutant: Mutant, kind: FindingKind, executable: Executable, bound: BoundContract) -> None:
    options: dict[str, Any] = {"may_copy": ("args[1].layers*.conv",)}
    assert audit_executable(executable, bound, **options).findings == ()
    broken = mutant(executable, live_values(executable), bound)
    assert kind in {finding.kind for finding in audit_executable(broken, bound, **options).findings}
