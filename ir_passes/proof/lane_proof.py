"""The lane proof of a step: walks over its jaxpr, then checks of the results.

One walk proves that lanes are apart. Further walks, each with one assumption, prove that idle lanes change no row, and
that no row changes where devices disagree.
"""

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
from ir_passes.contract.guarded_writes import step_form
from ir_passes.contract.normal_form import flatten
from ir_passes.contract.statements import ALWAYS_PROVED, Claim, Statement
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.tracing import FunctionSignature, trace_function
from ir_passes.kernels import ReadKernels
from ir_passes.proof import advice, packed_layout, refusals
from ir_passes.proof.assumed import assumed_calls, assumed_grids, assumed_of, dimensions_not_proved, noted_kernels
from ir_passes.proof.concerned import concerned
from ir_passes.proof.dims import dim_violations
from ir_passes.proof.numbering import Leaf
from ir_passes.proof.output_claims import accepted, changed_rows, outputs, repeated
from ir_passes.proof.owners import COMMON, LaneRows, Mixed, OneLane, Owner, PoolRows
from ir_passes.proof.prover import Prover
from ir_passes.proof.rules import opaque_calls
from ir_passes.proof.rules.addressing import index_sums, packed_tokens
from ir_passes.proof.rules.all import RULES
from ir_passes.proof.site import interpret
from ir_passes.proof.values import ActiveCount, OffsetEntry, PageEntry, SegmentIds, SlotEntry, UnchangedRows, Value
from ir_passes.proof.violations import IsolationError, Violation, ViolationKind, once

IDLE_CLAIMS = {"length": Claim.IDLE, "active": Claim.INACTIVE, "active_count": Claim.BEYOND_COUNT}
"""Role of an input -> claim about idle lanes of a separate walk."""
MAX_COUNT = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class Proof:
    """The result of a successful proof.

    Attributes:
        equations: their number, with calls replaced by bodies.
        proved: ids of `Claim`.
        assumed: declarations of the caller, taken for granted; ids of `Assumption`.
        notes: ids of `Note`.
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
        fn: the step; it is traced, not run, and proved in the form that `compile_step` compiles.
        args: example arguments, arrays or `jax.ShapeDtypeStruct`.
        kwargs: example keyword arguments.
        static_argnums: as for `compile_step`.
        static_argnames: likewise.

    Raises:
        ContractError: the contract does not fit.
        IsolationError: not proved; has all violations, with the user's lines.
    """
    trace = trace_function(fn, args, kwargs, FunctionSignature.of(fn, static_argnums, static_argnames))
    bound = contract.bind_trace(trace)
    return prove_jaxpr(step_form(trace.program, bound), bound)


def prove_jaxpr(program: ir.ClosedJaxpr, bound: BoundContract) -> Proof:
    """Prove a traced program; raises like `prove_isolation`."""
    start = time.perf_counter()
    try:
        kernels = opaque_calls.undeclared(program, bound)
        proved = _prove(flatten(kernels.program), kernels, bound)
    except (ContractError, IsolationError):
        raise
    except Exception as error:  # outside of the rules: `Site.apply` names the operation of a failing rule
        raise IsolationError((advice.failed(bound, error),)) from error
    return replace(proved, seconds=time.perf_counter() - start)


def _prove(flat: ir.ClosedJaxpr, kernels: ReadKernels, bound: BoundContract) -> Proof:
    prover = Prover(bound, unread=kernels.unread)
    results = walk(prover, flat)
    violations = [*_baked_pools(prover, flat), *prover.violations, *outputs(prover, flat, results)]
    violations += [*_coupling(prover, results), *dim_violations(bound, flat, prover.values)]
    proved = [*ALWAYS_PROVED]
    if any(isinstance(array.entry, Pool) and array.entry.dims for array in bound.inputs):
        proved.append(Claim.DIMENSIONS)
    roles = {getattr(array.entry, "role", None) for array in bound.inputs}
    for role, claim in IDLE_CLAIMS.items():
        if role in roles:
            running = results
            if role == "active_count":
                # the count is shared, so this walk must compare it lane by lane
                counted = Prover(bound, counted=True)
                running = walk(counted, flat)
                mixed = [*counted.violations, *outputs(counted, flat, running, pools=True)]
                violations += [refusals.not_by_lane(violation) for violation in mixed if violation not in violations]
            idle = Prover(bound, idle=role, counted=role == "active_count")
            idle_results = walk(idle, flat)
            violations += changed_rows(idle, flat, running, idle_results)
            violations += accepted(idle, flat, idle_results, (0, 0))
            proved.append(claim)
    for comparison in {id(eqn): eqn for eqn in prover.comparisons}.values():
        disagreeing = Prover(bound, disagreeing=comparison)
        violations += changed_rows(disagreeing, flat, results, walk(disagreeing, flat))
        violations += repeated(prover, flat, comparison)
    if prover.comparisons:
        proved.append(Claim.AGREEMENT)
    if any(isinstance(output.entry, Lane) and output.entry.role == "accepted" for output in bound.outputs):
        violations += accepted(prover, flat, results, (0, MAX_COUNT))
        proved.append(Claim.ACCEPTED)
    if violations:
        raise IsolationError(once(violations))
    prover.notes.update([*dimensions_not_proved(bound), *noted_kernels(kernels)])
    assumed = [*prover.assumed, *assumed_calls(prover.declared, bound.opaque), *assumed_of(bound)]
    assumed += dict.fromkeys(assumed_grids(kernels))
    statements = tuple(claim.statement() for claim in proved), tuple(sorted(assumed)), tuple(sorted(prover.notes))
    return Proof(bound.lanes, len(flat.jaxpr.eqns), *statements, 0.0)


def walk(prover: Prover, flat: ir.ClosedJaxpr) -> list[Value]:
    assert RULES
    prover.reorders = any(eqn.primitive.name == "sort" for eqn in ir.all_eqns(flat.jaxpr))
    inputs = [_input(prover, Leaf(leaf), array) for leaf, array in enumerate(prover.bound.inputs)]
    if prover.bound.layouts:
        prover.refine = packed_tokens.refine
        operations = packed_layout.operations(flat)
        for array, value in zip(prover.bound.inputs, inputs, strict=True):
            if isinstance(array.entry, Packed) and array.entry.role == "cu_seqlens":
                packed_layout.register(prover, value, array.entry.layout, operations)
    return interpret(prover, flat, inputs)


def _input(prover: Prover, leaf: Leaf, array: Bound) -> Value:
    number, lanes = prover.fresh(), prover.bound.lanes
    match array.entry:
        case Unspecified():
            about = concerned(prover.bound, [(LaneRows(0), (lanes,))])
            return Value(Mixed(refusals.UNSPECIFIED(path=array.path).violation(about)), number)
        case Shared(role):
            return Value(COMMON, number, fact=ActiveCount() if role == "active_count" and prover.counted else None)
        case Packed(_, "cu_seqlens", layout):
            tokens = prover.bound.layouts[layout]
            return Value(
                COMMON, number, None if tokens is None else (0, tokens), index_sums.single(OffsetEntry(layout, 0, 0))
            )
        case Packed(_, "segment_ids", layout):
            return Value(COMMON, number, (0, lanes), SegmentIds(0, layout))
        case Packed(axis, _, layout):
            single = array.shape[axis] == 1
            return Value(OneLane(0, packed=layout) if single else LaneRows(axis, packed=layout), number)
        case Lane(axis, role):
            idle = role is not None and role == prover.idle
            return Value(_lanes(axis, lanes), number, (0, 0) if idle else None)
        case SlotMap(_, size):
            return Value(_lanes(0, lanes), number, (0, size - 1), SlotEntry(leaf))
        case PageTable(_, size, _, role):
            # `size` means no page, in tables of pages that are only written
            written = role == "write"
            bounds, alternatives = (0, size - 1 + written), frozenset({"past"} if written else ())
            rows = OneLane(0) if lanes == 1 else LaneRows(0, array.shape[0] // lanes)
            if array.entry.packed:
                layout = array.entry.layout
                rows = OneLane(0, packed=layout) if array.shape[0] == 1 else LaneRows(0, packed=layout)
                alternatives = alternatives or frozenset({"last"})  # padding may hold any page
            return Value(rows, number, bounds, PageEntry(leaf, alternatives=alternatives))
        case Pool(group, axis):
            intact = UnchangedRows(leaf) if prover.idle or prover.disagreeing is not None else None
            owner: Owner = PoolRows(leaf, group, axis) if group in prover.bound.mapped else _lanes(axis, lanes)
            return Value(owner, number, intact=intact, version=prover.versions.first(leaf))


def _lanes(axis: int, lanes: int) -> Owner:
    return OneLane(0) if lanes == 1 else LaneRows(axis)


def _coupling(prover: Prover, results: list[Value]) -> list[Violation]:
    """Find pools of one group written at different rows, or in another order.

    Pools with a wrong write are skipped: their rows are unknown.
    """
    violations = []
    groups: dict[str, list[int]] = {}
    for leaf, successor in prover.bound.successors.items():
        entry, owner = prover.bound.inputs[leaf].entry, results[successor].owner
        wrong = isinstance(owner, Mixed) and owner.cause.kind is ViolationKind.WRONG_ROW
        if isinstance(entry, Pool) and entry.group in prover.bound.mapped and not wrong:
            groups.setdefault(entry.group, []).append(leaf)
    for first, *rest in groups.values():
        rows = _coordinates(prover, first)
        violations += [advice.uncoupled(prover, first, leaf) for leaf in rest if _coordinates(prover, leaf) != rows]
    return violations


def _coordinates(prover: Prover, leaf: int) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(access.coordinate for access in prover.accesses if access.write and access.leaf == leaf))


def _baked_pools(prover: Prover, flat: ir.ClosedJaxpr) -> list[Violation]:
    pools = {(array.shape, array.dtype): array.path for array in prover.bound.inputs if isinstance(array.entry, Pool)}
    consts = [(var, pools.get((ir.shape_of(var), ir.dtype_of(var)))) for var in flat.jaxpr.constvars]
    return [advice.baked_pool(prover, flat, var, path) for var, path in consts if path is not None]
