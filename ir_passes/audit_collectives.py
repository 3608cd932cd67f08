"""Which devices of a mesh a compiled step makes talk to each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ir_passes.findings import Finding, FindingKind, origin, where
from ir_passes.live_values import LiveValues
from ir_passes.program import Executable, Groups


@dataclass(frozen=True)
class Collective:
    """One operation between devices.

    Attributes:
        groups: the devices that talk, as positions in the mesh; a single empty group for all of them.
        axes: mesh axes along which they differ; None where that cannot be told.
    """

    instruction: str
    opcode: str
    groups: tuple[tuple[int, ...], ...]
    axes: tuple[str, ...] | None
    op_name: str
    source: str


def collectives(
    executable: Executable, live: LiveValues, mesh: Sequence[tuple[str, int]], declared: Sequence[str]
) -> tuple[list[Collective], list[Finding]]:
    """The collectives of a program, and those that run along other axes than the declared ones.

    Args:
        mesh: names and sizes of the mesh axes, the last one fastest; empty for one device.
        declared: axes along which the step may communicate.
    """
    module = executable.module
    listed: list[Collective] = []
    findings: list[Finding] = []
    for computation in _reached(executable, live):
        for one in module.computations[computation].instructions:
            if one.groups is None:
                continue
            axes = _axes(one.groups, mesh)
            op_name, source = origin(one, module)
            listed.append(Collective(one.name, one.opcode, one.groups.sets, axes, op_name, source))
            if axes is None or set(axes) - set(declared):
                along = "groups that cannot be read" if axes is None else f"axes {list(axes)}"
                findings.append(
                    Finding(
                        FindingKind.COLLECTIVE,
                        where(one, module),
                        f"{one.opcode} runs along {along}, expected {list(declared) or 'no communication at all'}; "
                        f"groups {one.groups.sets}",
                        "Declare the axis, or constrain the sharding so that the lanes of a device stay its own.",
                    )
                )
    return listed, findings


_COMBINING = (
    "fusion", "reduce", "reduce-window", "scatter", "sort", "map", "select-and-scatter", "all-reduce", "reduce-scatter",
    "all-reduce-start",
)  # fmt: skip
"""What these call combines numbers, and talks to no other device."""


def _reached(executable: Executable, live: LiveValues) -> Iterator[int]:
    """Computations that run, those of asynchronous operations included."""
    seen: dict[int, None] = {}
    todo = [one.computation for one in live.executed]
    while todo:
        id = todo.pop()
        if id not in seen:
            seen[id] = None
            for one in executable.module.computations[id].instructions:
                if one.opcode not in _COMBINING:
                    todo += one.called
    yield from seen


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
