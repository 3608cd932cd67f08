"""Violations at a step's outputs: messages and remedies, on which no verdict depends."""

from collections.abc import Sequence
from dataclasses import replace

from ir_passes.contract.contract import Bound, BoundContract, Pool, Shared, Unspecified
from ir_passes.jaxpr import ir
from ir_passes.proof.concerned import concerned
from ir_passes.proof.owners import Mixed, PoolRows, describe
from ir_passes.proof.prover import Prover
from ir_passes.proof.refusals import Refusal
from ir_passes.proof.values import Value
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


def at_output(prover: Prover, flat: ir.ClosedJaxpr, k: int, refusal: Refusal, about: Sequence[str]) -> Violation:
    """Return the violation of an output."""
    place = Place(flat.jaxpr, ir.maker_of(flat.jaxpr, flat.jaxpr.outvars[k]), prover.values[flat.jaxpr])
    return violation_at(place, *refusal, tuple(about))


def of_cause(prover: Prover, flat: ir.ClosedJaxpr, results: Sequence[Value], k: int, cause: Violation) -> Violation:
    """Return the violation of an output that depends on several lanes."""
    leaks = [
        value.owner.cause
        for output, value in zip(prover.bound.outputs, results, strict=True)
        if isinstance(value.owner, Mixed) and not isinstance(output.entry, Shared | Unspecified)
    ]
    if cause.source == "unknown":  # an argument that reaches the output without an operation at fault
        text = Refusal(f"{prover.bound.outputs[k].path}: {cause.message}", cause.remedy, cause.kind)
        return replace(at_output(prover, flat, k, text, cause.concerned), fault=cause.message)
    if cause.kind is ViolationKind.CROSS_LANE and not any(cause is leak for leak in leaks):
        return replace(cause, remedy=cause.remedy + _DECLASSIFY)
    return cause


def misfit(
    prover: Prover, flat: ir.ClosedJaxpr, k: int, value: Value, donor: int | None, refusal: Refusal
) -> Violation:
    """Return the violation of an output with another owner than its entry.

    Args:
        donor: index of the pool that the output succeeds, if any.
    """
    output = prover.bound.outputs[k]
    details = {"path": output.path, "axis": getattr(output.entry, "axis", 0), "owner": describe(value.owner)}
    if isinstance(value.owner, PoolRows):
        details |= {"pool": prover.bound.inputs[value.owner.leaf].path, "unframed": value.owner.unframed}
    text = refusal(**details)
    about = concerned(prover.bound, [(value.owner, output.shape)])
    pool = () if donor is None else (prover.bound.inputs[donor].path,)
    return at_output(prover, flat, k, text, dict.fromkeys((*about, *pool)))


def changed(prover: Prover, flat: ir.ClosedJaxpr, pool: Bound, k: int) -> Violation:
    """Return the violation of a pool with rows not shown to stay unchanged."""
    if prover.disagreeing is not None:
        message = f"{pool.path}: rows are not shown to stay as they are where devices disagree"
        remedy = "where(devices_agree(..), length, 0) for the lengths, or a row past the end for the slots"
        return at_output(prover, flat, k, Refusal(message, remedy, ViolationKind.AGREEMENT), (pool.path,))
    mapped = isinstance(pool.entry, Pool) and pool.entry.group in prover.mapped
    idle = f"{IDLE_LANES[prover.idle]} ({_idle_input(prover.bound, prover.idle)})"
    old = "pool[slots]" if mapped else "the pool as it came in"
    remedy = f"end with where({_BUSY[prover.idle]}, new, old), old being {old}, or write past the end with mode='drop'"
    message = f"{pool.path}: the row of {idle} is not shown to stay as it is"
    return at_output(prover, flat, k, Refusal(message, remedy, ViolationKind.IDLE), (pool.path,))


def _idle_input(bound: BoundContract, role: str) -> str:
    """Return path and entry of the input with a role, as "args[2], Lane(role='length')"."""
    operand = next(operand for operand in bound.inputs if getattr(operand.entry, "role", None) == role)
    return f"{operand.path}, {type(operand.entry).__name__}(role={role!r})"


def compared_again(prover: Prover, flat: ir.ClosedJaxpr, comparison: ir.JaxprEqn) -> Violation:
    """Return the violation of a comparison of devices that runs several times."""
    message = "devices are compared in a loop, or in a function that is called more than once"
    remedy = "call devices_agree once for all operands, outside of loops"
    place = Place(flat.jaxpr, len(flat.jaxpr.eqns), prover.values[flat.jaxpr])
    about = tuple(prover.bound.inputs[leaf].path for leaf in prover.bound.successors)
    kind = ViolationKind.AGREEMENT
    return Violation(kind, comparison.primitive.name, ir.source_of(comparison), message, remedy, about, place)


def not_accepted(prover: Prover, flat: ir.ClosedJaxpr, k: int, value: Value, why_not: str) -> Violation:
    """Return the violation of a count of accepted tokens."""
    output, present = prover.bound.outputs[k], {getattr(array.entry, "role", None) for array in prover.bound.inputs}
    roles = [prover.idle] if prover.idle else [role for role in _BUSY if role in present]
    guards = [f"end with where({_BUSY[role]}, accepted, 0)" for role in roles]
    remedy = ", and ".join([*guards, "clip accepted to 0 and the number of tokens"])
    text = Refusal(f"{output.path} {why_not}", remedy, ViolationKind.ACCEPTED)
    return at_output(prover, flat, k, text, concerned(prover.bound, [(value.owner, output.shape)]))
