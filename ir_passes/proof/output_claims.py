"""Checks of a step's results: outputs, and pool rows under an assumption, that are not shown to hold what they must."""

from dataclasses import replace

from ir_passes.contract.contract import Bound, BoundContract, Lane, Packed, Pool, Shared, Unspecified
from ir_passes.jaxpr import ir
from ir_passes.proof.concerned import concerned
from ir_passes.proof.numbering import Leaf
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows, describe
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Range, UnchangedRows, Value
from ir_passes.proof.violations import Place, Violation, ViolationKind

IDLE_LANES = {
    "length": "a lane of length 0",
    "active": "a lane that is not active",
    "active_count": "a lane behind the active ones",
}
"""Role of an input that says which lanes are idle -> a lane that is."""
_BUSY = {"length": "length > 0", "active": "active", "active_count": "arange(lanes) < active_count"}
"""Role of such an input -> the condition for lanes that are not idle, with the role for the array."""
_DECLASSIFY = "; if all lanes may see this value, return declassify(value, reason)"


def outputs(prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], pools: bool = False) -> list[Violation]:
    """Find outputs that hold something else than the contract says.

    Args:
        prover: after its walk.
        flat: the program.
        results: of the walk.
        pools: look at pools only.
    """
    donors = {after: before for before, after in prover.bound.successors.items()}
    entries = [output.entry for output in prover.bound.outputs]
    leaks = [
        value.owner.cause
        for entry, value in zip(entries, results, strict=True)
        if isinstance(value.owner, Mixed) and not isinstance(entry, Shared | Unspecified)
    ]
    found = []
    for k, (one, value) in enumerate(zip(prover.bound.outputs, results, strict=True)):
        if pools and not isinstance(one.entry, Pool):
            continue
        if isinstance(value.owner, Mixed):
            cause = value.owner.cause
            if cause.source == "unknown":  # an argument, which came here without an operation that is at fault
                at = _at_output(
                    prover, flat, k, cause.kind, f"{one.path}: {cause.message}", cause.remedy, cause.concerned
                )
                cause = replace(at, fault=cause.message)
            elif cause.kind is ViolationKind.CROSS_LANE and not any(cause is leak for leak in leaks):
                cause = replace(cause, remedy=cause.remedy + _DECLASSIFY)
            found.append(cause)
            continue
        fault = _output_fault(prover, one, value, donors.get(k))
        if fault is not None:
            kind, message, remedy = fault
            about = concerned(prover.bound, [(value.owner, one.shape)])
            if k in donors:
                about = tuple(dict.fromkeys((*about, prover.bound.inputs[donors[k]].path)))
            found.append(_at_output(prover, flat, k, kind, f"{one.path} {message}", remedy, about))
    return found


def _at_output(
    prover: Prover,
    flat: ir.ClosedJaxpr,
    k: int,
    kind: ViolationKind,
    message: str,
    remedy: str,
    about: tuple[str, ...],
) -> Violation:
    var, known = flat.jaxpr.outvars[k], prover.values[flat.jaxpr]
    index = ir.maker_of(flat.jaxpr, var)
    place = Place(flat.jaxpr, index, known)
    if index == len(flat.jaxpr.eqns):
        return Violation(kind, "", "unknown", message, remedy, about, place)
    eqn = flat.jaxpr.eqns[index]
    source, *callers = ir.frames_of(eqn) or ("unknown",)
    return Violation(kind, eqn.primitive.name, source, message, remedy, about, place, tuple(callers))


def _output_fault(prover: Prover, one: Bound, value: Value, donor: int | None) -> tuple[ViolationKind, str, str] | None:
    """Return kind, message and remedy if a result's owner is not the one of its contract entry; else None."""
    owner, lanes = value.owner, prover.bound.lanes
    match one.entry:
        case Unspecified():
            if not isinstance(owner, Common):
                remedy = "give it an entry, or leave it out only where it is the same for every lane"
                return ViolationKind.CROSS_LANE, f"is left out of the contract, but holds {describe(owner)}", remedy
        case Shared():
            if not isinstance(owner, Common):
                kind = ViolationKind.CROSS_LANE
                return kind, f"is declared Shared, but holds {describe(owner)}", "declare it Lane"
        case Lane(axis):
            if not _fits_lanes(owner, axis, one.shape[axis], lanes):
                remedy = f"put the lanes in order along axis {axis}"
                return ViolationKind.CROSS_LANE, f"is declared Lane(axis={axis}), but holds {describe(owner)}", remedy
        case Packed(axis, _, layout):
            mine = LaneRows(axis, packed=layout) if one.shape[axis] > 1 else OneLane(0, packed=layout)
            if not isinstance(owner, Common) and owner != mine:
                remedy = f"put what belongs to token t at index t of axis {axis}"
                return ViolationKind.CROSS_LANE, f"is declared Packed(axis={axis}), but holds {describe(owner)}", remedy
        case Pool(group, axis) if group not in prover.mapped:
            if not _fits_lanes(owner, axis, one.shape[axis], lanes):
                remedy = f"put row i of the pool's successor at index i of axis {axis}"
                return ViolationKind.WRONG_ROW, f"has one row per lane, but holds {describe(owner)}", remedy
            if value.version in prover.versions.consumed:
                return ViolationKind.STALE, "is a version that was written to later", "return the last version"
        case Pool():
            return _pool_fault(prover, one, value, donor)
    return None


def _fits_lanes(owner: Owner, axis: int, length: int, lanes: int) -> bool:
    if isinstance(owner, Common):
        return True
    if isinstance(owner, OneLane):
        return lanes == 1 and owner.lane == 0
    return owner == LaneRows(axis) and length == lanes


def _pool_fault(prover: Prover, one: Bound, value: Value, donor: int | None) -> tuple[ViolationKind, str, str] | None:
    owner = value.owner
    assert isinstance(one.entry, Pool)
    if not isinstance(owner, PoolRows) or owner.axis != one.entry.axis or owner.view or owner.inner != 1:
        remedy = "return the pool with rows written by the slot map"
        return ViolationKind.FRAME, f"is no version of its pool, but {describe(owner)}", remedy
    if owner.leaf != donor:
        there = prover.bound.inputs[owner.leaf].path
        return ViolationKind.WRONG_ROW, f"is a version of {there}, not of its own pool", "return pools in their order"
    if owner.unframed is not None:
        why = f"may differ in rows that no lane owns: {owner.unframed.message} at {owner.unframed.source}"
        return ViolationKind.FRAME, why, owner.unframed.remedy
    if value.version in prover.versions.consumed:
        return ViolationKind.STALE, "is a version that was written to later", "return the last version"
    return None


def changed_rows(prover: Prover, flat: ir.ClosedJaxpr, running: list[Value], still: list[Value]) -> list[Violation]:
    """Find pools whose rows are not shown to come out as they went in.

    Args:
        prover: of a second walk, under the assumption that a lane is idle, or that devices disagree.
        flat: the program.
        running, still: the results of the first walk and of the second.
    """
    found = []
    for before, after in prover.bound.successors.items():
        value = still[after]
        if isinstance(running[after].owner, Mixed) or value.intact == UnchangedRows(Leaf(before)):
            continue
        path = prover.bound.inputs[before].path
        if prover.disagreeing is not None:
            kind = ViolationKind.AGREEMENT
            message = f"{path}: rows are not shown to stay as they are where devices disagree"
            remedy = "where(devices_agree(..), length, 0) for the lengths, or a row past the end for the slots"
        else:
            kind, entry = ViolationKind.IDLE, prover.bound.inputs[before].entry
            mapped = isinstance(entry, Pool) and entry.group in prover.mapped
            idle = f"{IDLE_LANES[prover.idle]} ({_idle_input(prover.bound, prover.idle)})"
            message = f"{path}: the row of {idle} is not shown to stay as it is"
            old = "pool[slots]" if mapped else "the pool as it came in"
            remedy = (
                f"end with where({_BUSY[prover.idle]}, new, old), old being {old}, or write past the end with "
                "mode='drop'"
            )
        found.append(_at_output(prover, flat, after, kind, message, remedy, (path,)))
    return found


def _idle_input(bound: BoundContract, role: str) -> str:
    """Return path and entry of the input with a role, as "args[2], Lane(role='length')"."""
    operand = next(operand for operand in bound.inputs if getattr(operand.entry, "role", None) == role)
    return f"{operand.path}, {type(operand.entry).__name__}(role={role!r})"


def repeated(prover: Prover, flat: ir.ClosedJaxpr, comparison: ir.JaxprEqn) -> list[Violation]:
    """Refuse a comparison of devices' operands that runs more than once: the walk cannot let one run alone fail."""
    if sum(one is comparison for one in prover.comparisons) == 1:
        return []
    message = "devices are compared in a loop, or in a function that is called more than once"
    remedy = "call devices_agree once for all operands, outside of loops"
    place = Place(flat.jaxpr, len(flat.jaxpr.eqns), prover.values[flat.jaxpr])
    about = tuple(prover.bound.inputs[before].path for before in prover.bound.successors)
    kind = ViolationKind.AGREEMENT
    return [Violation(kind, comparison.primitive.name, ir.source_of(comparison), message, remedy, about, place)]


def accepted(
    prover: Prover, flat: ir.ClosedJaxpr, results: list[Value], bounds: Range, why_not: str
) -> list[Violation]:
    """Find counts of accepted tokens that are not shown to lie within bounds."""
    found = []
    for k, (one, value) in enumerate(zip(prover.bound.outputs, results, strict=True)):
        if not isinstance(one.entry, Lane) or one.entry.role != "accepted" or isinstance(value.owner, Mixed):
            continue
        if value.range is None or value.range[0] < bounds[0] or bounds[1] < value.range[1]:
            roles = [
                role for role in _BUSY if any(getattr(one.entry, "role", None) == role for one in prover.bound.inputs)
            ]
            guards = [
                f"end with where({_BUSY[role]}, accepted, 0)" for role in ([prover.idle] if prover.idle else roles)
            ]
            remedy = ", and ".join([*guards, "clip accepted to 0 and the number of tokens"])
            message, about = f"{one.path} {why_not}", concerned(prover.bound, [(value.owner, one.shape)])
            found.append(_at_output(prover, flat, k, ViolationKind.ACCEPTED, message, remedy, about))
    return found
