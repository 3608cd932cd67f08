"""The owner of each value of a program, as the lane proof finds it: for reports and pictures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, PoolRows
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Value


@dataclass(frozen=True)
class Ownership:
    """The owner of a value.

    Attributes:
        kind: "lanes" (a slice for each lane along `axis`), "lane" (number `lane`), "shared", "pool" or "mixed".
        axis: of the slices; None where they are not in the order of the lanes.
    """

    kind: str
    axis: int | None = None
    lane: int | None = None


def ownership(program: ir.ClosedJaxpr, bound: BoundContract) -> Mapping[Any, Ownership]:
    """Return the owner of every result in a program, those in its bodies included.

    Args:
        program: as it is compiled; it need not be proved.
        bound: its contract.
    """
    owners: dict[Any, Ownership] = {}

    def observe(eqn: Any, _: list[Value], results: list[Value]) -> None:
        for var, value in zip(eqn.outvars, results, strict=True):
            owners[var] = _described(value, var.aval, bound.lanes)

    walk(Prover(bound, observe=observe), program)
    return owners


def _described(value: Value, aval: Any, lanes: int) -> Ownership:
    match value.owner:
        case Common():
            return Ownership("shared")
        case OneLane() | LaneRows() if value.owner.packed:
            return Ownership("mixed")
        case OneLane(lane):
            return Ownership("lane", lane=lane if isinstance(lane, int) else None)
        case LaneRows(axis, inner, start, order):
            whole = start == 0 and order is None and aval.shape[axis] == inner * lanes
            return Ownership("lanes", axis if whole else None)
        case PoolRows():
            return Ownership("pool")
        case Mixed():
            return Ownership("mixed")
