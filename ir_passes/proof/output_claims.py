"""Checks of a step's results against the contract, after a walk."""

from ir_passes.contract.contract import Bound, Lane, Packed, Pool, Shared, Unspecified
from ir_passes.jaxpr import ir
from ir_passes.proof import advice, refusals
from ir_passes.proof.numbering import Leaf
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows
from ir_passes.proof.prover import Prover
from ir_passes.proof.refusals import RefusalText
from ir_passes.proof.values import Range, UnchangedRows, Value
from ir_passes.proof.violations import Violation


def outputs(prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], pools: bool = False) -> list[Violation]:
    """Find outputs with another owner than their contract entry; `pools`: only pools."""
    donors = {successor: leaf for leaf, successor in prover.bound.successors.items()}
    violations = []
    for k, (output, value) in enumerate(zip(prover.bound.outputs, results, strict=True)):
        if pools and not isinstance(output.entry, Pool):
            continue
        if isinstance(value.owner, Mixed):
            violations.append(advice.of_cause(prover, flat, results, k, value.owner.cause))
            continue
        fault = _fault(prover, output, value, donors.get(k))
        if fault is not None:
            violations.append(advice.misfit(prover, flat, k, value, donors.get(k), fault))
    return violations


def _fault(prover: Prover, output: Bound, value: Value, donor: int | None) -> RefusalText | None:
    owner, lanes = value.owner, prover.bound.lanes
    match output.entry:
        case Unspecified():
            return None if isinstance(owner, Common) else refusals.NO_ENTRY
        case Shared():
            return None if isinstance(owner, Common) else refusals.NOT_SHARED
        case Lane(axis):
            return None if _fits_lanes(owner, axis, output.shape[axis], lanes) else refusals.NO_LANES
        case Packed(axis, _, layout):
            expected = LaneRows(axis, packed=layout) if output.shape[axis] > 1 else OneLane(0, packed=layout)
            return None if isinstance(owner, Common) or owner == expected else refusals.NO_TOKENS
        case Pool(group, axis) if group not in prover.bound.mapped:
            if not _fits_lanes(owner, axis, output.shape[axis], lanes):
                return refusals.NO_ROW_PER_LANE
        case Pool(_, axis):
            if not isinstance(owner, PoolRows) or owner.axis != axis or owner.view or owner.inner != 1:
                return refusals.NO_VERSION
            if owner.leaf != donor:
                return refusals.OTHER_POOL
            if owner.unframed is not None:
                return refusals.MAY_DIFFER
        case _:
            return refusals.NO_ENTRY
    return refusals.OLD_VERSION if value.version in prover.versions.consumed else None


def _fits_lanes(owner: Owner, axis: int, length: int, lanes: int) -> bool:
    if isinstance(owner, Common):
        return True
    if isinstance(owner, OneLane):
        return lanes == 1 and owner.lane == 0
    return owner == LaneRows(axis) and length == lanes


def changed_rows(
    prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], restricted: list[Value]
) -> list[Violation]:
    """Find pools with rows that the `restricted` results of a second walk may change."""
    return [
        advice.changed(prover, flat, prover.bound.inputs[leaf], successor)
        for leaf, successor in prover.bound.successors.items()
        if not isinstance(results[successor].owner, Mixed) and restricted[successor].intact != UnchangedRows(Leaf(leaf))
    ]


def repeated(prover: Prover, flat: ir.ClosedJaxpr, comparison: ir.JaxprEqn) -> list[Violation]:
    """Refuse repeated comparisons: a walk lets all their runs fail."""
    is_single = sum(eqn is comparison for eqn in prover.comparisons) == 1
    return [] if is_single else [advice.compared_again(prover, flat, comparison)]


def accepted(prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], bounds: Range) -> list[Violation]:
    """Find counts of accepted tokens not shown to be within bounds."""
    violations = []
    for k, (output, value) in enumerate(zip(prover.bound.outputs, results, strict=True)):
        if not isinstance(output.entry, Lane) or output.entry.role != "accepted" or isinstance(value.owner, Mixed):
            continue
        if value.range is None or value.range[0] < bounds[0] or bounds[1] < value.range[1]:
            violations.append(advice.not_accepted(prover, flat, k, value))
    return violations
