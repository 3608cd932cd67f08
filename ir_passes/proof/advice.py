"""Violations of rows, outputs and whole steps, with remedies; no verdict depends on them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ir_passes.contract.contract import (
    Bound,
    BoundContract,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    Unspecified,
)
from ir_passes.jaxpr import ir, rewriting
from ir_passes.proof import refusals
from ir_passes.proof.concerned import concerned, describe
from ir_passes.proof.owners import LaneRows, Mixed, PoolRows
from ir_passes.proof.prover import Prover
from ir_passes.proof.refusals import RefusalText
from ir_passes.proof.site import Site
from ir_passes.proof.values import PageEntry, SlotEntry, Value
from ir_passes.proof.violations import Place, Violation, ViolationKind, violation_at

IDLE_LANES = {
    "length": "a lane of length 0",
    "active": "a lane that is not active",
    "active_count": "a lane behind the active ones",
}
"""Role of an input -> its idle lane, in words."""
_BUSY = {"length": "length > 0", "active": "active", "active_count": "arange(lanes) < active_count"}
"""Role of an input -> the condition for active lanes."""
_DECLASSIFY = "; if all lanes may see this value, return declassify(value, reason)"


def at_output(prover: Prover, flat: ir.ClosedJaxpr, k: int, refusal: RefusalText, about: Sequence[str]) -> Violation:
    """Return the violation of an output."""
    place = Place(flat.jaxpr, rewriting.maker_of(flat.jaxpr, flat.jaxpr.outvars[k]), prover.values[flat.jaxpr])
    return violation_at(place, *refusal, tuple(about))


def of_rows(
    site: Site, text: RefusalText, pool: PoolRows, index: Value, full: Sequence[int], write: bool
) -> RefusalText:
    """Return the refusal of an access to rows; `full` is the shape on one device."""
    bound, fact, split = site.prover.bound, index.fact, getattr(index.owner, "split", ())
    constant = index.range[0] if index.range is not None and index.range[0] == index.range[1] else None
    details: dict[str, Any] = {
        "path": bound.inputs[pool.leaf].path,
        "group": pool.group,
        "inner": pool.inner,
        "length": full[pool.axis],
        "along": ", ".join(map(str, pool.split or split)),
        "used": "written" if write else "read",
        "number": "" if constant is None else f", {constant}",
    }
    if isinstance(fact, SlotEntry | PageEntry):
        source, offset = bound.inputs[fact.leaf], getattr(fact, "offset", None)
        entry, filler = source.entry, site.params.get("fill_value")
        assert isinstance(entry, SlotMap | PageTable)
        writers = (bound.inputs[leaf] for leaf in sorted(pool.writers - {fact.leaf}))
        details |= {
            "slots": source.path,
            "map": "slot map" if isinstance(entry, SlotMap) else "page table",
            "groups": ", ".join(entry.names),
            "size": entry.size,
            "last": entry.size - 1,
            "local": entry.local,
            "rows": full[pool.axis] // pool.inner * (1 if entry.local else site.prover.devices_along(pool.split)),
            "writer": next((writer.path for writer in writers if not getattr(writer.entry, "disjoint", False)), ""),
            "shift": "nothing" if offset is None else f"{offset.rows} * axis_index({offset.over!r})",
            "filler": "nan" if filler is None else filler,
            "page_size": getattr(entry, "page_size", 1),
            "indices": getattr(entry, "page_size", 1) * pool.inner,
            "stride": fact.stride,
        }
    return text(**details)


def of_cause(prover: Prover, flat: ir.ClosedJaxpr, results: Sequence[Value], k: int, cause: Violation) -> Violation:
    """Return the violation of an output of several lanes."""
    leaks = [
        value.owner.cause
        for output, value in zip(prover.bound.outputs, results, strict=True)
        if isinstance(value.owner, Mixed) and not isinstance(output.entry, Shared | Unspecified)
    ]
    if cause.source == "unknown":  # an argument that reaches the output without an operation at fault
        text = RefusalText(f"{prover.bound.outputs[k].path}: {cause.message}", cause.remedy, cause.kind)
        return replace(at_output(prover, flat, k, text, cause.concerned), fault=cause.message)
    if cause.kind is ViolationKind.CROSS_LANE and not any(cause is leak for leak in leaks):
        return replace(cause, remedy=cause.remedy + _DECLASSIFY)
    return cause


def misfit(
    prover: Prover, flat: ir.ClosedJaxpr, k: int, value: Value, donor: int | None, refusal: RefusalText
) -> Violation:
    """Return the violation of an output, perhaps a donor pool's successor, with another owner."""
    output = prover.bound.outputs[k]
    details = {"path": output.path, "axis": getattr(output.entry, "axis", 0), "owner": describe(value.owner)}
    if isinstance(value.owner, PoolRows):
        details |= {"pool": prover.bound.inputs[value.owner.leaf].path, "unframed": value.owner.unframed}
    text = refusal(**details)
    about = concerned(prover.bound, [(value.owner, output.shape)])
    pool = () if donor is None else (prover.bound.inputs[donor].path,)
    return at_output(prover, flat, k, text, tuple(dict.fromkeys((*about, *pool))))


def changed(prover: Prover, flat: ir.ClosedJaxpr, pool: Bound, k: int) -> Violation:
    """Return the violation of a pool with rows not shown to stay unchanged."""
    if prover.disagreeing is not None:
        message = f"{pool.path}: rows are not shown to stay as they are where devices disagree"
        remedy = "where(devices_agree(..), length, 0) for the lengths, or a row past the end for the slots"
        return at_output(prover, flat, k, RefusalText(message, remedy, ViolationKind.AGREEMENT), (pool.path,))
    mapped = isinstance(pool.entry, Pool) and pool.entry.group in prover.bound.mapped
    idle = f"{IDLE_LANES[prover.idle]} ({_idle_input(prover.bound, prover.idle)})"
    old = "pool[slots]" if mapped else "the pool as it came in"
    remedy = (
        f"end with where({_BUSY[prover.idle]}, new, old), old being {old} (the condition with new axes up to those of "
        "old), or write past the end with mode='drop'"
    )
    message = f"{pool.path}: the row of {idle} is not shown to stay as it is"
    return at_output(prover, flat, k, RefusalText(message, remedy, ViolationKind.IDLE), (pool.path,))


def _idle_input(bound: BoundContract, role: str) -> str:
    """Return path and entry of the input with a role, as "args[2], Lane(role='length')"."""
    operand = next(operand for operand in bound.inputs if getattr(operand.entry, "role", None) == role)
    return f"{operand.path}, {type(operand.entry).__name__}(role={role!r})"


def compared_again(prover: Prover, flat: ir.ClosedJaxpr, comparison: ir.JaxprEqn) -> Violation:
    """Return the violation of repeated comparisons of devices."""
    message = "devices are compared in a loop, or in a function that is called more than once"
    remedy = "call devices_agree once for all operands, outside of loops"
    place = Place(flat.jaxpr, len(flat.jaxpr.eqns), prover.values[flat.jaxpr])
    about = tuple(prover.bound.inputs[leaf].path for leaf in prover.bound.successors)
    kind = ViolationKind.AGREEMENT
    return Violation(kind, comparison.primitive.name, ir.source_of(comparison), message, remedy, about, place)


def not_accepted(prover: Prover, flat: ir.ClosedJaxpr, k: int, value: Value) -> Violation:
    """Return the violation of a count of accepted tokens."""
    output, present = prover.bound.outputs[k], {getattr(array.entry, "role", None) for array in prover.bound.inputs}
    roles = [prover.idle] if prover.idle else [role for role in _BUSY if role in present]
    guards = [f"end with where({_BUSY[role]}, accepted, 0)" for role in roles]
    remedy = ", and ".join([*guards, "clip accepted to 0 and the number of tokens"])
    bounds = f"0 for {IDLE_LANES[prover.idle]}" if prover.idle else "0 or more"
    text = RefusalText(f"{output.path} is not shown to be {bounds}", remedy, ViolationKind.ACCEPTED)
    return at_output(prover, flat, k, text, concerned(prover.bound, [(value.owner, output.shape)]))


def failed(bound: BoundContract, error: Exception) -> Violation:
    """Return the violation of a proof with an error."""
    about = concerned(bound, [(LaneRows(0), (bound.lanes,))])
    return refusals.PROOF_FAILED(error=type(error).__name__, reason=error).violation(about)


def uncoupled(prover: Prover, first: int, second: int) -> Violation:
    """Return the violation of two pools of a group, by their leaves."""
    write = next((access for access in prover.accesses if access.write and access.leaf in (first, second)), None)
    paths = prover.bound.inputs[first].path, prover.bound.inputs[second].path
    text = refusals.UNCOUPLED(first=paths[0], second=paths[1])
    return replace(text.violation() if write is None else write.site.violation(*text), concerned=paths)


def baked_pool(prover: Prover, flat: ir.ClosedJaxpr, var: ir.Var, path: str) -> Violation:
    """Return the violation of a pool among the program's constants."""
    eqns = flat.jaxpr.eqns
    first_use = next((index for index, eqn in enumerate(eqns) if var in eqn.invars), len(eqns))
    place = Place(flat.jaxpr, first_use, prover.values[flat.jaxpr])
    return violation_at(place, *refusals.BAKED_POOL(path=path), (path,))
