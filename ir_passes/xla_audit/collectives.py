"""The check that a compiled step runs the collectives of its program, and no others.

Each operand of a collective is compared by itself: XLA runs several that are alike as one with several operands, or,
on a GPU, as one of all their elements behind each other. It may order them otherwise; each is counted where it stands
in XLA's schedule. Sums of 16-bit numbers it may compute of 32-bit
ones, with as many elements.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ir_passes.jaxpr.collectives import ORDERED, Collective, Scheduled
from ir_passes.xla_audit.dataflow import LiveValues
from ir_passes.xla_audit.findings import Finding, FindingKind, origin, where
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
"""Opcode and what it reduces with -> the operation in a schedule."""
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
"""The wider dtype that XLA may compute with instead."""


def collectives(
    executable: Executable,
    live: LiveValues,
    mesh: Sequence[tuple[str, int]],
    declared: Sequence[str],
    scheduled: Sequence[Scheduled] = (),
) -> tuple[list[Collective], list[Finding]]:
    """Return the collectives of a compiled program, in the order in which they run, and their findings.

    Args:
        mesh: names and sizes of the mesh axes, the last one fastest; empty for one device.
        declared: axes along which XLA may add collectives of its own.
        scheduled: those of the program.
    """
    module, count = executable.module, int(np.prod([size for _, size in mesh]))
    waiting = list(scheduled)
    found: list[Collective] = []
    findings: list[Finding] = []
    for one, computation in _in_order(executable, live):
        assert one.groups is not None
        axes = _axes(one.groups, mesh)
        operands = tuple(operand.array for operand in computation.operands(one))
        operation = KINDS.get((one.opcode.removesuffix("-start"), _reducer(one, executable)), one.opcode)
        groups = _members(one.groups, count, operation in ORDERED or one.opcode.startswith("collective-permute"))
        for dtype, elements, size in _exchanged(operation, operands):
            matches = _matches(waiting, operation, groups, [(dtype, elements)])
            matches = matches or _matches(waiting, operation, groups, _behind_each_other(one, computation, executable))
            if matches:
                for match in matches:
                    waiting.remove(match)
                    found.append(match.collective)
            elif axes is not None and axes and not set(axes) - set(declared):
                source = origin(one, module)[1]
                found.append(Collective(operation, axes, max(map(len, groups)), dtype, size, None, source))
            else:
                findings.append(_not_scheduled(one, executable, f"{dtype}, {size} bytes", axes, scheduled, declared))
    findings += [_missing(one, module.name) for one in waiting if not one.constant]
    return found, findings


def _behind_each_other(one: Instruction, computation: Computation, executable: Executable) -> list[tuple[str, int]]:
    """dtype and elements of each array whose elements a sum's one operand is; empty if it is another array.

    XLA flattens and concatenates several operands, sums once and slices (openxla/xla,
    xla/hlo/transforms/collectives/all_reduce_contiguous.cc).
    """
    if one.opcode not in ("all-reduce", "all-reduce-start") or len(one.operands) != 1:
        return []
    (made,) = computation.operands(one)
    if made.opcode == "fusion":
        computation = executable.module.computations[made.called[0]]
        made = computation.result
    if made.opcode != "concatenate" or len(made.array.dims) != 1:
        return []
    parts = [part.array for part in computation.operands(made)]
    return [(DTYPES.get(array.dtype, array.dtype), array.count) for array in parts]


def _matches(
    waiting: list[Scheduled], operation: str, groups: frozenset[tuple[int, ...]], parts: list[tuple[str, int]]
) -> list[Scheduled]:
    """The collectives of the program that a compiled one is, one for each part; empty unless each part is one."""
    left, found = list(waiting), list[Scheduled]()
    for dtype, count in parts:
        match = _match(left, operation, groups, dtype, count)
        if match is None:
            return []
        left.remove(match)
        found.append(match)
    return found


def _match(
    waiting: list[Scheduled], operation: str, groups: frozenset[tuple[int, ...]], dtype: str, count: int
) -> Scheduled | None:
    """The collective of the program that a compiled one is, of the same numbers and no constant if there is one."""
    alike = [
        one
        for one in waiting
        if (one.collective.operation, one.groups, one.count) == (operation, groups, count)
        and dtype in (one.collective.dtype, WIDER.get(one.collective.dtype))
    ]
    return min(alike, key=lambda one: (one.collective.dtype != dtype, one.constant), default=None)


def _exchanged(operation: str, operands: tuple[Array, ...]) -> Iterator[tuple[str, int, int]]:
    """dtype, elements and bytes of each operand; an exchange of all with all has its one in pieces."""
    if operation == "all_to_all":
        count, size = sum(array.count for array in operands), sum(array.bytes for array in operands)
        yield DTYPES.get(operands[0].dtype, operands[0].dtype), count, size
        return
    for array in operands:
        yield DTYPES.get(array.dtype, array.dtype), array.count, array.bytes


def _not_scheduled(
    one: Instruction,
    executable: Executable,
    what: str,
    axes: tuple[str, ...] | None,
    scheduled: Sequence[Scheduled],
    declared: Sequence[str],
) -> Finding:
    along = "groups that cannot be read" if axes is None else f"axes {list(axes)}"
    along += f", expected {list(declared) or 'no communication at all'}" if not scheduled else ""
    groups = one.groups.sets if one.groups is not None else ()
    return Finding(
        FindingKind.COLLECTIVE,
        where(one, executable.module),
        f"{one.opcode} runs along {along}; it exchanges {what}, which no collective of the program does; "
        f"groups {groups}",
        "Constrain shardings so that XLA does not move arrays between devices, or write the step as a shard_map with "
        "the collectives that it needs.",
    )


def _missing(one: Scheduled, module: str) -> Finding:
    return Finding(
        FindingKind.MISSING_COLLECTIVE,
        f"{module}, {one.collective.source}",
        f"the program's {one.collective} is not among the collectives of the compiled program",
        "XLA replaced it by something else: compare the compiled text with the program, and report it to this project.",
    )


_COMBINING = (
    "fusion", "reduce", "reduce-window", "scatter", "sort", "map", "select-and-scatter", "all-reduce", "reduce-scatter",
    "all-reduce-start",
)  # fmt: skip
"""Instructions whose called computations combine numbers and talk to no other device."""


def _in_order(executable: Executable, live: LiveValues) -> list[tuple[Instruction, Computation]]:
    """The collectives that run, those of asynchronous operations included, in the order of the schedule."""
    clock = {one.id: tick for tick, one in enumerate(live.executed)}
    module = executable.module
    found: list[tuple[int, Instruction, Computation]] = []
    todo = [(clock[one.id], one.computation) for one in live.executed]
    seen: set[int] = set()
    for tick, id in todo:
        if id in seen:
            continue
        seen.add(id)
        for one in module.computations[id].instructions:
            now = clock.get(one.id, tick)
            if one.groups is not None and not one.opcode.endswith("-done"):
                found.append((now, one, module.computations[id]))
            if one.opcode not in _COMBINING:
                todo += [(now, called) for called in one.called]
    return [(one, computation) for _, one, computation in sorted(found, key=lambda entry: entry[0])]


def _reducer(one: Instruction, executable: Executable) -> str:
    """The opcode that combines two numbers in a reduction; "" for everything that reduces nothing."""
    return executable.module.computations[one.called[0]].result.opcode if one.called else ""


def _members(groups: Groups, count: int, ordered: bool) -> frozenset[tuple[int, ...]]:
    return frozenset(one if ordered and one else tuple(sorted(one)) or tuple(range(count)) for one in groups.sets)


def _axes(groups: Groups, mesh: Sequence[tuple[str, int]]) -> tuple[str, ...] | None:
    sizes = [size for _, size in mesh]
    count = int(np.prod(sizes)) if sizes else 1
    sets = [members or tuple(range(count)) for members in groups.sets]
    if not groups.readable or any(not 0 <= one < count for members in sets for one in members):
        return None
    used: set[int] = set()
    for members in sets:
        places = np.array(np.unravel_index(members, sizes)) if sizes else np.zeros((0, len(members)), np.int64)
        used.update(int(axis) for axis in np.nonzero((places != places[:, :1]).any(axis=1))[0])
    return tuple(name for axis, (name, _) in enumerate(mesh) if axis in used)
