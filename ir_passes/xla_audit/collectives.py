"""Check that a compiled step runs exactly the collectives of its program.

XLA merges collectives into several operands or, on a GPU, a concatenation; so operands are compared one by one. XLA may
also reorder them, sum 16-bit numbers in 32 bits, and gather by a sum (`padded_gathers`).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ir_passes.jaxpr.collectives import ORDERED, Collective, Scheduled
from ir_passes.xla_audit import hlo_schema
from ir_passes.xla_audit.dataflow import LiveValues
from ir_passes.xla_audit.findings import Finding, FindingKind, HloError, origin, where
from ir_passes.xla_audit.padded_gathers import padded_gather
from ir_passes.xla_audit.program import Array, Computation, Executable, Groups, Instruction

KINDS = {
    ("all-reduce", "add"): "psum",
    ("all-reduce", "maximum"): "pmax",
    ("all-reduce", "or"): "pmax",
    ("all-reduce", "minimum"): "pmin",
    ("all-reduce", "and"): "pmin",
    ("reduce-scatter", "add"): "reduce_scatter",
    ("all-gather", ""): "all_gather",
    ("all-to-all", ""): "all_to_all",
    ("collective-permute", ""): "ppermute",
    ("collective-broadcast", ""): "pbroadcast",
    ("ragged-all-to-all", ""): "ragged_all_to_all",
}
"""Opcode and opcode of its reducer -> operation of a schedule."""
DTYPES = (
    {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128", "s4": "int4", "u4": "uint4"}
    | {
        f"{short}{bits}": f"{name}{bits}"
        for short, name in (("s", "int"), ("u", "uint"), ("f", "float"))
        for bits in (8, 16, 32, 64)
    }
    | {
        f"f8{kind}": f"float8_{kind}"
        for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
    }
)
WIDER = {"bfloat16": "float32", "float16": "float32", "int16": "int32", "uint16": "uint32"}
"""Dtype -> wider dtype that XLA may use."""


def collectives(
    executable: Executable,
    live: LiveValues,
    mesh: Sequence[tuple[str, int]],
    declared: Sequence[str],
    scheduled: Sequence[Scheduled] = (),
) -> tuple[list[Collective], list[Finding]]:
    """Return compiled collectives in schedule order, and findings.

    Args:
        mesh, scheduled: as for `audit_executable`; the mesh is empty on one device.
        declared: axes along which XLA may add collectives.
    """
    module, count = executable.module, int(np.prod([size for _, size in mesh]))
    waiting = list(scheduled)
    matched: list[Collective] = []
    findings: list[Finding] = []
    for instruction, computation in _in_order(executable, live):
        assert instruction.groups is not None
        axes = _axes(instruction.groups, mesh)
        operation = KINDS.get(
            (instruction.opcode.removesuffix("-start"), _reducer(instruction, executable)), instruction.opcode
        )
        groups = _members(
            instruction.groups, count, operation in ORDERED or instruction.opcode.startswith("collective-permute")
        )
        for operand, dtype, elements, size in _exchanged(operation, computation.operands(instruction)):
            gather = (
                padded_gather(operand, computation, module, instruction.groups, count) if operation == "psum" else None
            )
            matches = _matches(waiting, "all_gather", gather[0], [_part(gather[1])]) if gather else []
            matches = matches or _matches(waiting, operation, groups, [(dtype, elements)])
            matches = matches or _matches(
                waiting, operation, groups, _behind_each_other(instruction, computation, executable)
            )
            if matches:
                for match in matches:
                    waiting.remove(match)
                    matched.append(match.collective)
            elif axes is not None and axes and not set(axes) - set(declared):
                source = origin(instruction, module)[1]
                matched.append(Collective(operation, axes, max(map(len, groups)), dtype, size, None, source))
            else:
                findings.append(
                    _not_scheduled(instruction, executable, f"{dtype}, {size} bytes", axes, scheduled, declared)
                )
    findings += [_missing(collective, module.name) for collective in waiting if not collective.constant]
    return matched, findings


def _behind_each_other(
    instruction: Instruction, computation: Computation, executable: Executable
) -> list[tuple[str, int]]:
    """Return dtype and elements of each array that a sum's only operand concatenates.

    XLA concatenates operands, sums once and slices (openxla/xla,
    xla/hlo/transforms/collectives/all_reduce_contiguous.cc).
    """
    if instruction.opcode not in ("all-reduce", "all-reduce-start") or len(instruction.operands) != 1:
        return []
    (operand,) = computation.operands(instruction)
    if operand.opcode == "fusion":
        computation = executable.module.computations[operand.called[0]]
        operand = computation.result
    if operand.opcode != "concatenate" or len(operand.array.dims) != 1:
        return []
    return [_part(part.array) for part in computation.operands(operand)]


def _part(array: Array) -> tuple[str, int]:
    """Return JAX's dtype and the number of elements."""
    return DTYPES.get(array.dtype, array.dtype), array.count


def _matches(
    waiting: list[Scheduled], operation: str, groups: frozenset[tuple[int, ...]], parts: list[tuple[str, int]]
) -> list[Scheduled]:
    """Match each part to a collective of the program; [] unless all match.

    Equal dtypes are preferred, constants come last.
    """
    remaining, matched = list(waiting), list[Scheduled]()
    for dtype, count in parts:
        alike = [
            candidate
            for candidate in remaining
            if (candidate.collective.operation, candidate.groups, candidate.count) == (operation, groups, count)
            and dtype in (candidate.collective.dtype, WIDER.get(candidate.collective.dtype))
        ]
        if not alike:
            return []
        match = min(alike, key=lambda candidate: (candidate.collective.dtype != dtype, candidate.constant))
        remaining.remove(match)
        matched.append(match)
    return matched


def _exchanged(operation: str, operands: Sequence[Instruction]) -> Iterator[tuple[Instruction, str, int, int]]:
    """Yield operands with dtype, elements and bytes; pieces of an all-to-all count once."""
    if operation == "all_to_all":
        arrays = [operand.array for operand in operands]
        count, size = sum(array.count for array in arrays), sum(array.bytes for array in arrays)
        yield operands[0], _part(arrays[0])[0], count, size
        return
    for operand in operands:
        yield operand, *_part(operand.array), operand.array.bytes


def _not_scheduled(
    instruction: Instruction,
    executable: Executable,
    description: str,
    axes: tuple[str, ...] | None,
    scheduled: Sequence[Scheduled],
    declared: Sequence[str],
) -> Finding:
    along = "groups that cannot be read" if axes is None else f"axes {list(axes)}"
    along += f", expected {list(declared) or 'no communication at all'}" if not scheduled else ""
    return Finding(
        FindingKind.COLLECTIVE,
        where(instruction, executable.module),
        f"{instruction.opcode} runs along {along}; it exchanges {description}, which no collective of the program does"
        f"; groups {instruction.groups or ()}",
        "Constrain shardings so that XLA does not move arrays between devices, or write the step as a shard_map with "
        "the collectives that it needs.",
    )


def _missing(scheduled: Scheduled, module: str) -> Finding:
    return Finding(
        FindingKind.MISSING_COLLECTIVE,
        f"{module}, {scheduled.collective.source}",
        f"the program's {scheduled.collective} is not among the collectives of the compiled program",
        "XLA replaced it by something else: compare the compiled text with the program, and report it to this project.",
    )


_COMBINING = (
    "fusion", "reduce", "reduce-window", "scatter", "sort", "map", "select-and-scatter", "all-reduce", "reduce-scatter",
    "all-reduce-start",
)  # fmt: skip
"""Opcodes with called computations that only combine numbers."""


def _in_order(executable: Executable, live: LiveValues) -> list[tuple[Instruction, Computation]]:
    """Return collectives in schedule order, asynchronous ones at their start."""
    clock = {instruction.id: tick for tick, instruction in enumerate(live.executed)}
    module = executable.module
    entries: list[tuple[int, Instruction, Computation]] = []
    todo = [(clock[instruction.id], instruction.computation) for instruction in live.executed]
    visited: set[int] = set()
    for tick, id in todo:
        if id in visited:
            continue
        visited.add(id)
        for instruction in module.computations[id].instructions:
            now = clock.get(instruction.id, tick)
            if instruction.groups is not None and not instruction.opcode.endswith("-done"):
                entries.append((now, instruction, module.computations[id]))
            if instruction.opcode not in _COMBINING:
                todo += [(now, called) for called in instruction.called]
    return [(instruction, computation) for _, instruction, computation in sorted(entries, key=lambda entry: entry[0])]


def _reducer(instruction: Instruction, executable: Executable) -> str:
    return executable.module.computations[instruction.called[0]].result.opcode if instruction.called else ""


def _members(groups: Groups, count: int, ordered: bool) -> frozenset[tuple[int, ...]]:
    return frozenset(
        members if ordered and members else tuple(sorted(members)) or tuple(range(count)) for members in groups
    )


def _axes(groups: Groups, mesh: Sequence[tuple[str, int]]) -> tuple[str, ...] | None:
    sizes = [size for _, size in mesh]
    count = int(np.prod(sizes)) if sizes else 1
    sets = [members or tuple(range(count)) for members in groups]
    if not sets or any(not 0 <= device < count for members in sets for device in members):
        return None
    used: set[int] = set()
    for members in sets:
        places = np.array(np.unravel_index(members, sizes)) if sizes else np.zeros((0, len(members)), np.int64)
        used.update(int(axis) for axis in np.nonzero((places != places[:, :1]).any(axis=1))[0])
    return tuple(name for axis, (name, _) in enumerate(mesh) if axis in used)


MAX_DEVICES = 1 << 20
"""Bound on the devices of a collective."""


def read_groups(raw: dict[str, Any]) -> Groups:
    """Decode the device groups of a collective from any of XLA's four encodings; raises HloError."""
    if raw["pairs"]:
        return tuple((pair["source"], pair["target"]) for pair in raw["pairs"])
    if raw["mesh_groups"]:
        mesh, axes = raw["mesh_groups"]["mesh"], raw["mesh_groups"]["axes"]
        if mesh is None or mesh["rest"] or any(axis["rest"] for axis in axes):
            return ()
        sizes = [axis["size"] for axis in mesh["axes"]]
        group_axes = [axis["index"] for axis in axes]
        other_axes = [axis for axis in range(len(sizes)) if axis not in group_axes]
        order = _devices(sizes).transpose(other_axes + group_axes)
        rows = order.reshape(-1, math.prod(sizes[axis] for axis in group_axes))
        return tuple(tuple(int(i) for i in row) for row in rows)
    devices = raw["devices"] or hlo_schema.DEVICE_LIST.blank
    if devices["iota"]:
        iota = devices["iota"]
        order = _devices(iota["reshape"])
        order = order.transpose(iota["transpose"] or None).reshape(iota["groups"], iota["devices"])
        return tuple(tuple(int(i) for i in row) for row in order)
    groups = devices["replica_groups"] or raw["replica_groups"]
    return tuple(group["replica_ids"] for group in groups) or ((),)


def _devices(sizes: Sequence[int]) -> np.ndarray:
    if not 0 < math.prod(sizes) <= MAX_DEVICES:
        raise HloError(f"a collective has {math.prod(sizes)} devices; expected 1 to {MAX_DEVICES}")
    return np.arange(math.prod(sizes)).reshape(sizes)
