"""The proof that no lane of a step can reach another's state or results (noninterference, by information flow)."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ir_passes.contract.contract import (
    Bound,
    BoundContract,
    ContractError,
    Lane,
    LaneContract,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    Unspecified,
)
from ir_passes.contract.normal_form import step_form
from ir_passes.contract.statements import ALWAYS_PROVED, Claim, Statement
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.tracing import FunctionSignature, trace_function
from ir_passes.proof import packed_layout
from ir_passes.proof.assumed import assumed_of, dimensions_not_proved
from ir_passes.proof.concerned import concerned
from ir_passes.proof.dims import dim_violations
from ir_passes.proof.numbering import Leaf
from ir_passes.proof.output_claims import IDLE_LANES, accepted, changed_rows, outputs, repeated
from ir_passes.proof.owners import COMMON, LaneRows, Mixed, OneLane, Owner, PoolRows
from ir_passes.proof.prover import Prover
from ir_passes.proof.rules import opaque_calls
from ir_passes.proof.rules.addressing import packed_tokens
from ir_passes.proof.rules.all import RULES
from ir_passes.proof.site import interpret
from ir_passes.proof.values import ActiveCount, Offsets, PageEntry, SegmentIds, SlotEntry, UnchangedRows, Value
from ir_passes.proof.violations import IsolationError, Place, Violation, ViolationKind, once

IDLE_CLAIMS = {"length": Claim.IDLE, "active": Claim.INACTIVE, "active_count": Claim.BEYOND_COUNT}
"""Role of an input that says which lanes are idle -> the claim about them. Each is proved by itself."""
MAX_COUNT = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class Proof:
    """The result of a successful proof.

    Attributes:
        lanes: N.
        equations: of the program, calls replaced by their bodies.
        proved: the claims, whose ids are those of `Claim`.
        assumed: declarations of the caller that the proof takes for granted; ids of `Assumption`.
        notes: remarks that are no faults; ids of `Note`.
        seconds: time the proof took.
    """

    lanes: int
    equations: int
    proved: tuple[Statement, ...]
    assumed: tuple[Statement, ...]
    notes: tuple[Statement, ...]
    seconds: float


def prove_isolation(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract,
    *,
    kwargs: Mapping[str, Any] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Proof:
    """Prove that the lanes of a step cannot reach each other.

    Args:
        fn: the step; it is traced, not run.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
        contract: of the step.
        kwargs, static_argnums, static_argnames: as for `compile_step`.

    Raises:
        ContractError: the contract does not fit the function.
        IsolationError: something is not proved; it carries every violation with the user's line.
    """
    trace = trace_function(fn, args, kwargs, FunctionSignature.of(fn, static_argnums, static_argnames))
    return prove_jaxpr(trace.program, contract.bind_trace(trace))


def prove_jaxpr(program: ir.ClosedJaxpr, bound: BoundContract) -> Proof:
    """Prove a traced program; arguments and errors are those of `prove_isolation`."""
    start = time.perf_counter()
    try:
        kernels = opaque_calls.undeclared(program, bound.opaque)
        proved = _prove(step_form(kernels.program, bound), kernels, bound)
    except (ContractError, IsolationError):
        raise
    except Exception as error:  # outside of the rules, of which `Site.apply` names the operation
        message = f"the proof failed: {type(error).__name__}: {error}"
        remedy = "report the error with the step"
        about = concerned(bound, [(LaneRows(0), (bound.lanes,))])
        raise IsolationError((Violation(ViolationKind.UNKNOWN, "", "unknown", message, remedy, about),)) from error
    return replace(proved, seconds=time.perf_counter() - start)


def _prove(flat: ir.ClosedJaxpr, kernels: Any, bound: BoundContract) -> Proof:
    """Prove a flat program.

    Args:
        kernels: its kernels, as `undeclared` returned them.
    """
    prover = Prover(bound, unread=kernels.unread)
    results = walk(prover, flat)
    violations = [*_baked_pools(prover, flat), *prover.violations, *outputs(prover, flat, results)]
    violations += [*_coupling(prover, results), *dim_violations(bound, flat, prover.values)]
    proved = [*ALWAYS_PROVED]
    if any(isinstance(one.entry, Pool) and one.entry.dims for one in bound.inputs):
        proved.append(Claim.DIMENSIONS)
    for role, claim in IDLE_CLAIMS.items():
        if any(getattr(one.entry, "role", None) == role for one in bound.inputs):
            running = results
            if role == "active_count":
                # A shared number says nothing of lanes; what is compared with it has to stay each lane's own here.
                counted = Prover(bound, counted=True)
                running = walk(counted, flat)
                found = [*counted.violations, *outputs(counted, flat, running, pools=True)]
                violations += [_not_by_lane(one) for one in found if one not in violations]
            idle = Prover(bound, idle=role, counted=role == "active_count")
            still = walk(idle, flat)
            violations += changed_rows(idle, flat, running, still)
            violations += accepted(idle, flat, still, (0, 0), f"is not shown to be 0 for {IDLE_LANES[role]}")
            proved.append(claim)
    for comparison in {id(one): one for one in prover.comparisons}.values():
        disagreeing = Prover(bound, disagreeing=comparison)
        violations += changed_rows(disagreeing, flat, results, walk(disagreeing, flat))
        violations += repeated(prover, flat, comparison)
    if prover.comparisons:
        proved.append(Claim.AGREEMENT)
    if any(isinstance(one.entry, Lane) and one.entry.role == "accepted" for one in bound.outputs):
        violations += accepted(prover, flat, results, (0, MAX_COUNT), "is not shown to be 0 or more")
        proved.append(Claim.ACCEPTED)
    if violations:
        raise IsolationError(once(violations))
    prover.notes.update([*dimensions_not_proved(bound), *opaque_calls.noted(kernels)])
    assumed = [*prover.assumed, *opaque_calls.assumed(prover.declared, bound.opaque), *assumed_of(bound)]
    return Proof(
        bound.lanes,
        len(flat.jaxpr.eqns),
        tuple(claim.statement() for claim in proved),
        tuple(sorted(assumed)),
        tuple(sorted(prover.notes)),
        0.0,
    )


def _not_by_lane(one: Violation) -> Violation:
    """Return the fault of a comparison with the number of active lanes that is used for other lanes than its own."""
    message = f"it is not shown that a lane behind the active ones keeps its rows: {one.message}"
    remedy = "use arange(lanes) < active_count lane by lane: where(arange(lanes) < active_count, new, old)"
    return replace(one, kind=ViolationKind.IDLE, message=message, remedy=remedy)


def walk(prover: Prover, flat: ir.ClosedJaxpr) -> list[Value]:
    """Interpret a flat program abstractly; return its abstract results."""
    assert RULES
    prover.reorders = any(eqn.primitive.name == "sort" for eqn in ir.all_eqns(flat.jaxpr))
    inputs = [_input(prover, Leaf(leaf), one) for leaf, one in enumerate(prover.bound.inputs)]
    _lay_out(prover, inputs, flat)
    consts = [prover.constant(const) for const in flat.consts]
    return interpret(prover, flat.jaxpr, consts, inputs)


def _lay_out(prover: Prover, inputs: list[Value], flat: ir.ClosedJaxpr) -> None:
    """Prepare for packed tokens, if the contract has any."""
    if not prover.bound.layouts:
        return
    prover.refine = packed_tokens.refine
    present = packed_layout.operations(flat)
    for one, value in zip(prover.bound.inputs, inputs, strict=True):
        if isinstance(one.entry, Packed) and one.entry.role == "cu_seqlens":
            packed_layout.register(prover, value, one.entry.layout, present)


def _input(prover: Prover, leaf: Leaf, one: Bound) -> Value:
    """Return the abstract value that the contract gives an argument."""
    number, lanes = prover.fresh(), prover.bound.lanes
    match one.entry:
        case Unspecified():
            what = f"{one.path}, which the contract leaves out and which may hold anything of any lane, reaches this"
            remedy = "give it an entry: Shared() if it is the same for every lane, Lane() if it has an index for each"
            about = concerned(prover.bound, [(LaneRows(0), (lanes,))])
            return Value(Mixed(Violation(ViolationKind.CROSS_LANE, "", "unknown", what, remedy, about)), number)
        case Shared(role):
            return Value(COMMON, number, fact=ActiveCount() if role == "active_count" and prover.counted else None)
        case Packed(_, "cu_seqlens", layout):
            tokens = prover.bound.layouts[layout]
            return Value(COMMON, number, None if tokens is None else (0, tokens), Offsets(layout, 0))
        case Packed(_, "segment_ids", layout):
            return Value(COMMON, number, (0, lanes), SegmentIds(0, layout))
        case Packed(axis, _, layout):
            one_token = one.shape[axis] == 1
            return Value(OneLane(0, packed=layout) if one_token else LaneRows(axis, packed=layout), number)
        case Lane(axis, role):
            idle = role is not None and role == prover.idle
            return Value(_lanes(axis, lanes), number, (0, 0) if idle else None)
        case SlotMap(_, size):
            return Value(_lanes(0, lanes), number, (0, size - 1), SlotEntry(leaf))
        case PageTable(_, size, _, role):
            # of rows that are only written, `size` stands for none
            bounds, alternatives = (
                ((0, size), frozenset({"past"})) if role == "write" else ((0, size - 1), frozenset[str]())
            )
            rows = OneLane(0) if lanes == 1 else LaneRows(0, one.shape[0] // lanes)
            if one.entry.packed:
                layout = one.entry.layout
                rows = OneLane(0, packed=layout) if one.shape[0] == 1 else LaneRows(0, packed=layout)
                alternatives = alternatives or frozenset({"last"})  # padding may name whatever it likes
            return Value(rows, number, bounds, PageEntry(leaf, alternatives=alternatives))
        case Pool(group, axis):
            intact = UnchangedRows(leaf) if prover.idle or prover.disagreeing is not None else None
            owner: Owner = PoolRows(leaf, group, axis) if group in prover.mapped else _lanes(axis, lanes)
            return Value(owner, number, intact=intact, version=prover.versions.first(leaf))


def _lanes(axis: int, lanes: int) -> Owner:
    return OneLane(0) if lanes == 1 else LaneRows(axis)


def _coupling(prover: Prover, results: list[Value]) -> list[Violation]:
    """Find pools of one group that are not written at the same rows, in the same order.

    Pools whose write is a fault already are left out: the rows that were meant are unknown.
    """
    found = []
    groups: dict[str, list[int]] = {}
    for leaf in prover.bound.successors:
        entry = prover.bound.inputs[leaf].entry
        owner = results[prover.bound.successors[leaf]].owner
        unknown = isinstance(owner, Mixed) and owner.cause.kind is ViolationKind.WRONG_ROW
        if isinstance(entry, Pool) and entry.group in prover.mapped and not unknown:
            groups.setdefault(entry.group, []).append(leaf)
    for leaves in groups.values():
        written = {leaf: _coordinates(prover, leaf) for leaf in leaves}
        first = leaves[0]
        for leaf in leaves[1:]:
            if written[leaf] != written[first]:
                site = next((r.site for r in prover.accesses if r.write and r.leaf in (leaf, first)), None)
                paths = prover.bound.inputs[first].path, prover.bound.inputs[leaf].path
                message = f"{paths[0]} and {paths[1]} belong to one group and are written at different rows"
                remedy = "write all pools of a group by the same index, the same number of times"
                kind = ViolationKind.COUPLING
                fault = (
                    site.violation(kind, message, remedy)
                    if site is not None
                    else Violation(kind, "", "unknown", message, remedy)
                )
                found.append(replace(fault, concerned=paths))
    return found


def _coordinates(prover: Prover, leaf: int) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(r.coordinate for r in prover.accesses if r.write and r.leaf == leaf))


def _baked_pools(prover: Prover, flat: ir.ClosedJaxpr) -> list[Violation]:
    """Find constants of the program that look like pools."""
    pools = {(b.shape, b.dtype): b.path for b in prover.bound.inputs if isinstance(b.entry, Pool)}
    found = []
    for var in flat.jaxpr.constvars:
        path = pools.get((ir.shape_of(var), ir.dtype_of(var)))
        if path is None:
            continue
        users = [i for i, eqn in enumerate(flat.jaxpr.eqns) if var in eqn.invars]
        at = users[0] if users else len(flat.jaxpr.eqns)
        source, *callers = ir.frames_of(flat.jaxpr.eqns[at]) if users else ("unknown",)
        name = flat.jaxpr.eqns[at].primitive.name if users else ""
        message = f"a constant of the program has the shape and dtype of {path}: a pool was captured when it was traced"
        place = Place(flat.jaxpr, at, prover.values[flat.jaxpr])
        remedy = "make it an argument of the step"
        found.append(Violation(ViolationKind.CONSTANT, name, source, message, remedy, (path,), place, tuple(callers)))
    return found
