"""Checks of a step's results against the contract, after a walk."""

from dataclasses import replace

from ir_passes.contract.contract import Bound, BoundContract, Lane, Packed, Pool, Shared, Unspecified
from ir_passes.jaxpr import ir
from ir_passes.proof.concerned import concerned
from ir_passes.proof.numbering import Leaf
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows, describe
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Range, UnchangedRows, Value
from ir_passes.proof.violations import Place, Violation, ViolationKind, violation_at

Fault = tuple[ViolationKind, str, str]
"""Kind, message without the path of the output, and remedy."""
IDLE_LANES = {
    "length": "a lane of length 0",
    "active": "a lane that is not active",
    "active_count": "a lane behind the active ones",
}
"""Role of an input -> its idle lane, in words."""
_BUSY = {"length": "length > 0", "active": "active", "active_count": "arange(lanes) < active_count"}
"""Role of an input -> the condition for active lanes."""
_DECLASSIFY = "; if all lanes may see this value, return declassify(value, reason)"


def outputs(prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], pools: bool = False) -> list[Violation]:
    """Find outputs with another owner than their contract entry; `pools`: only pools."""
    donors = {successor: leaf for leaf, successor in prover.bound.successors.items()}
    leaks = [
        value.owner.cause
        for output, value in zip(prover.bound.outputs, results, strict=True)
        if isinstance(value.owner, Mixed) and not isinstance(output.entry, Shared | Unspecified)
    ]
    violations = []
    for k, (output, value) in enumerate(zip(prover.bound.outputs, results, strict=True)):
        if pools and not isinstance(output.entry, Pool):
            continue
        if isinstance(value.owner, Mixed):
            cause = value.owner.cause
            if cause.source == "unknown":  # an argument that reaches the output without an operation at fault
                message = f"{output.path}: {cause.message}"
                violation = _at_output(prover, flat, k, cause.kind, message, cause.remedy, cause.concerned)
                cause = replace(violation, fault=cause.message)
            elif cause.kind is ViolationKind.CROSS_LANE and not any(cause is leak for leak in leaks):
                cause = replace(cause, remedy=cause.remedy + _DECLASSIFY)
            violations.append(cause)
            continue
        fault = _output_fault(prover, output, value, donors.get(k))
        if fault is not None:
            kind, message, remedy = fault
            about = concerned(prover.bound, [(value.owner, output.shape)])
            if k in donors:
                about = tuple(dict.fromkeys((*about, prover.bound.inputs[donors[k]].path)))
            violations.append(_at_output(prover, flat, k, kind, f"{output.path} {message}", remedy, about))
    return violations


def _at_output(
    prover: Prover, flat: ir.ClosedJaxpr, k: int, kind: ViolationKind, message: str, remedy: str, about: tuple[str, ...]
) -> Violation:
    place = Place(flat.jaxpr, ir.maker_of(flat.jaxpr, flat.jaxpr.outvars[k]), prover.values[flat.jaxpr])
    return violation_at(place, kind, message, remedy, about)


def _output_fault(prover: Prover, output: Bound, value: Value, donor: int | None) -> Fault | None:
    owner, lanes = value.owner, prover.bound.lanes
    kind, content = ViolationKind.CROSS_LANE, f"but holds {describe(owner)}"
    match output.entry:
        case Unspecified():
            if not isinstance(owner, Common):
                remedy = "give it an entry, or leave it out only where it is the same for every lane"
                return kind, f"is left out of the contract, {content}", remedy
        case Shared():
            if not isinstance(owner, Common):
                return kind, f"is declared Shared, {content}", "declare it Lane"
        case Lane(axis):
            if not _fits_lanes(owner, axis, output.shape[axis], lanes):
                return kind, f"is declared Lane(axis={axis}), {content}", f"put the lanes in order along axis {axis}"
        case Packed(axis, _, layout):
            expected = LaneRows(axis, packed=layout) if output.shape[axis] > 1 else OneLane(0, packed=layout)
            if not isinstance(owner, Common) and owner != expected:
                remedy = f"put what belongs to token t at index t of axis {axis}"
                return kind, f"is declared Packed(axis={axis}), {content}", remedy
        case Pool(group, axis) if group not in prover.mapped:
            if not _fits_lanes(owner, axis, output.shape[axis], lanes):
                remedy = f"put row i of the pool's successor at index i of axis {axis}"
                return ViolationKind.WRONG_ROW, f"has one row per lane, {content}", remedy
            if value.version in prover.versions.consumed:
                return ViolationKind.STALE, "is a version that was written to later", "return the last version"
        case Pool():
            return _pool_fault(prover, output, value, donor)
    return None


def _fits_lanes(owner: Owner, axis: int, length: int, lanes: int) -> bool:
    if isinstance(owner, Common):
        return True
    if isinstance(owner, OneLane):
        return lanes == 1 and owner.lane == 0
    return owner == LaneRows(axis) and length == lanes


def _pool_fault(prover: Prover, output: Bound, value: Value, donor: int | None) -> Fault | None:
    owner = value.owner
    assert isinstance(output.entry, Pool)
    if not isinstance(owner, PoolRows) or owner.axis != output.entry.axis or owner.view or owner.inner != 1:
        remedy = "return the pool with rows written by the slot map"
        return ViolationKind.FRAME, f"is no version of its pool, but {describe(owner)}", remedy
    if owner.leaf != donor:
        path = prover.bound.inputs[owner.leaf].path
        return ViolationKind.WRONG_ROW, f"is a version of {path}, not of its own pool", "return pools in their order"
    if owner.unframed is not None:
        why = f"may differ in rows that no lane owns: {owner.unframed.message} at {owner.unframed.source}"
        return ViolationKind.FRAME, why, owner.unframed.remedy
    if value.version in prover.versions.consumed:
        return ViolationKind.STALE, "is a version that was written to later", "return the last version"
    return None


def changed_rows(
    prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], restricted: list[Value]
) -> list[Violation]:
    """Find pools with rows not shown to stay unchanged.

    Args:
        prover: of a second walk, for an idle lane or devices that disagree.
        results, restricted: of the first and second walk.
    """
    violations = []
    for leaf, successor in prover.bound.successors.items():
        if isinstance(results[successor].owner, Mixed) or restricted[successor].intact == UnchangedRows(Leaf(leaf)):
            continue
        pool = prover.bound.inputs[leaf]
        if prover.disagreeing is not None:
            kind = ViolationKind.AGREEMENT
            message = f"{pool.path}: rows are not shown to stay as they are where devices disagree"
            remedy = "where(devices_agree(..), length, 0) for the lengths, or a row past the end for the slots"
        else:
            kind = ViolationKind.IDLE
            mapped = isinstance(pool.entry, Pool) and pool.entry.group in prover.mapped
            idle = f"{IDLE_LANES[prover.idle]} ({_idle_input(prover.bound, prover.idle)})"
            message = f"{pool.path}: the row of {idle} is not shown to stay as it is"
            old = "pool[slots]" if mapped else "the pool as it came in"
            remedy = (
                f"end with where({_BUSY[prover.idle]}, new, old), old being {old}, or write past the end with "
                "mode='drop'"
            )
        violations.append(_at_output(prover, flat, successor, kind, message, remedy, (pool.path,)))
    return violations


def _idle_input(bound: BoundContract, role: str) -> str:
    """Return path and entry of the input with a role, as "args[2], Lane(role='length')"."""
    operand = next(operand for operand in bound.inputs if getattr(operand.entry, "role", None) == role)
    return f"{operand.path}, {type(operand.entry).__name__}(role={role!r})"


def repeated(prover: Prover, flat: ir.ClosedJaxpr, comparison: ir.JaxprEqn) -> list[Violation]:
    """Refuse repeated comparisons: a walk lets all their runs fail."""
    if sum(eqn is comparison for eqn in prover.comparisons) == 1:
        return []
    message = "devices are compared in a loop, or in a function that is called more than once"
    remedy = "call devices_agree once for all operands, outside of loops"
    place = Place(flat.jaxpr, len(flat.jaxpr.eqns), prover.values[flat.jaxpr])
    about = tuple(prover.bound.inputs[leaf].path for leaf in prover.bound.successors)
    kind = ViolationKind.AGREEMENT
    return [Violation(kind, comparison.primitive.name, ir.source_of(comparison), message, remedy, about, place)]


def accepted(
    prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], bounds: Range, why_not: str
) -> list[Violation]:
    """Find counts of accepted tokens not shown to be within bounds."""
    present = {getattr(array.entry, "role", None) for array in prover.bound.inputs}
    roles = [prover.idle] if prover.idle else [role for role in _BUSY if role in present]
    guards = [f"end with where({_BUSY[role]}, accepted, 0)" for role in roles]
    remedy = ", and ".join([*guards, "clip accepted to 0 and the number of tokens"])
    violations = []
    for k, (output, value) in enumerate(zip(prover.bound.outputs, results, strict=True)):
        if not isinstance(output.entry, Lane) or output.entry.role != "accepted" or isinstance(value.owner, Mixed):
            continue
        if value.range is None or value.range[0] < bounds[0] or bounds[1] < value.range[1]:
            message, about = f"{output.path} {why_not}", concerned(prover.bound, [(value.owner, output.shape)])
            violations.append(_at_output(prover, flat, k, ViolationKind.ACCEPTED, message, remedy, about))
    return violations
