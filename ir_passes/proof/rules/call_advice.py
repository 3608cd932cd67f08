"""Refusals of opaque calls, with remedies; no verdict depends on them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ir_passes.contract.contract import (
    Lane,
    Opaque,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
)
from ir_passes.contract.missing_entries import entry_code
from ir_passes.contract.opaque_names import exact_name, short_name
from ir_passes.jaxpr import ir
from ir_passes.proof.owners import Common, LaneRows, OneLane, PoolRows
from ir_passes.proof.refusals import RefusalText
from ir_passes.proof.site import Site
from ir_passes.proof.values import PageEntry, SlotEntry, Value
from ir_passes.proof.violations import ViolationKind


def undeclared_call(site: Site, operands: Sequence[Value]) -> RefusalText:
    """Return the refusal of a call without a declaration."""
    exact, name = exact_name(site.eqn), short_name(site.eqn)
    message = f"nothing is known of {exact or f'a {site.name} without a name'}"
    reason = site.prover.unread.get(id(site.params.get("jaxpr")))
    message += f", and it cannot be read: {reason}" if reason else ""
    code = declaration_code(site, operands) or "Opaque(inputs, outputs)"
    declared = f"if it keeps its lanes apart, declare it: LaneContract(..., opaque={{{name!r}: {code}}})"
    remedy = declared if name else "give it a name, as by pallas_call(..., name=...)"
    return RefusalText(message, remedy, ViolationKind.OPAQUE)


def ambiguous_name(site: Site, name: str, other_calls: Sequence[ir.JaxprEqn]) -> RefusalText:
    """Return the refusal of calls with one name and several bodies."""
    calls = (*other_calls, site.eqn)
    called = (f"{exact_name(call)}, called at {' from '.join(ir.frames_of(call)[:2])}" for call in calls)
    message = f"{name!r} is declared as one thing and names several: {'; '.join(dict.fromkeys(called))}"
    exact_names = dict.fromkeys(exact_name(call) for call in other_calls)
    remedy = f"declare each by its exact name: {', '.join(map(repr, (*exact_names, exact_name(site.eqn))))}"
    if exact_name(site.eqn) in exact_names:
        remedy = "give each a name of its own, as by pallas_call(..., name=...) or by a function of another name"
    return RefusalText(message, remedy, ViolationKind.AMBIGUOUS)


def declaration_code(site: Site, operands: Sequence[Value]) -> str | None:
    """Return the `Opaque` of a call that keeps lanes separate.

    A result that aliases a pool succeeds it; any other has lanes if an operand has lanes. A shared result is never
    suggested, as the proof would trust it.
    """
    inputs = [_operand(site, value, shape) for value, shape in zip(operands, site.shapes, strict=True)]
    aliases: Mapping[int, int] = ir.aliases_of(site.eqn)
    # operand numbers in aliases of a kernel skip the lengths of its grid
    lengths = getattr(site.params.get("grid_mapping"), "num_dynamic_grid_bounds", 0)
    donors = {result: operand + lengths for operand, result in aliases.items()}
    lanes = site.prover.bound.lanes
    per_lane = any(not isinstance(entry, Shared) for entry in inputs)
    outputs: list[Any] = []
    for k, var in enumerate(site.eqn.outvars):
        shape, donor = ir.shape_of(var), inputs[donors[k]] if k in donors else None
        axes = [entry.axis for entry in inputs if isinstance(entry, Lane)] + list(range(len(shape)))
        axis = next((axis for axis in axes if axis < len(shape) and shape[axis] == lanes), None)
        tokens = next((entry for entry in inputs if entry is not None and _is_alike(site, entry, shape)), None)
        if isinstance(donor, Pool) or tokens is not None:
            outputs.append(donor if isinstance(donor, Pool) else tokens)
        elif not per_lane:
            outputs.append(Shared())
        elif axis is None:
            return None
        else:
            outputs.append(Lane(axis))
    if None in inputs:
        return None
    parts = [f"({', '.join(map(entry_code, side))}{',' if len(side) == 1 else ''})" for side in (inputs, outputs)]
    return f"Opaque({', '.join([*parts, *([f'aliases={dict(aliases)}'] if aliases else [])])})"


def _is_alike(site: Site, entry: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a result has the tokens of packed operands."""
    if not isinstance(entry, Packed) or entry.role is not None or entry.axis >= len(shape):
        return False
    return shape[entry.axis] == site.prover.bound.layouts[entry.layout]


def _operand(site: Site, value: Value, shape: tuple[int, ...]) -> Any:
    prover, owner, fact = site.prover, value.owner, value.fact
    if isinstance(fact, PageEntry) or (isinstance(fact, SlotEntry) and len(shape) == 1):
        entry = prover.bound.inputs[fact.leaf].entry
        return replace(entry) if isinstance(entry, SlotMap | PageTable) else None
    leaf = None if value.version is None else prover.versions.leaf_of.get(value.version)
    pool = None if leaf is None else prover.bound.inputs[leaf].entry
    match owner:
        case Common():
            layout = site.layout_of(value, shape)
            return Shared() if layout is None else Packed(role="cu_seqlens", layout=layout)
        case LaneRows(axis) if owner.packed and owner == LaneRows(axis, packed=owner.packed):
            return Packed(axis, layout=owner.packed)
        case PoolRows(_, group, axis):
            return Pool(group, axis)
        case LaneRows(axis) if not owner.packed:
            return Pool(pool.group, axis) if isinstance(pool, Pool) else Lane(axis)
        case OneLane() if not owner.packed and 1 in shape:
            return Pool(pool.group, pool.axis) if isinstance(pool, Pool) else Lane(shape.index(1))
    return None


def other_types(eqn: ir.JaxprEqn, entry: Opaque) -> str:
    """Describe a call's difference from its declaration in operands or results."""
    called = f"{ir.types(eqn.invars)} and {ir.types(eqn.outvars)}"
    return f"declared with operands {entry.inputs} and results {entry.outputs}, called with {called}"


def other_entries(fact: SlotEntry | PageEntry, path: str) -> str:
    """Describe changed entries of a slot map or page table."""
    if isinstance(fact, SlotEntry) and fact.alternatives:
        return "some entries may be replaced by a row past the end of the pool"
    return f"is computed of {path}: it may hold something else than its entries"


def unequal_rows(lengths: Mapping[str, tuple[int, ...]]) -> str:
    """Describe operands and results with different numbers of rows."""
    counts = ", ".join(f"{name} has {length[0] if length else 'none'}" for name, length in lengths.items())
    return f"numbers of rows differ: {counts}"
