"""Suggested declarations of opaque calls, and checks of row maps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ir_passes.contract.contract import Lane, Packed, PageTable, Pool, Shared, SlotMap
from ir_passes.contract.missing_entries import entry_code
from ir_passes.jaxpr import ir
from ir_passes.proof.owners import Common, LaneRows, OneLane, PoolRows, axis_of
from ir_passes.proof.rules.addressing.index_sums import entry_of
from ir_passes.proof.site import Site
from ir_passes.proof.values import OffsetEntry, PageEntry, SlotEntry, Value


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


def layout_of(site: Site, value: Value, shape: tuple[int, ...]) -> str | None:
    """Return the layout whose cu_seqlens an operand is, if any."""
    entry, by = entry_of(value.fact) or (None, 0)
    is_whole = entry == OffsetEntry(entry.layout, 0, 0) and not by if entry is not None else False
    return entry.layout if entry is not None and is_whole and shape == (site.prover.bound.lanes + 1,) else None


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
            layout = layout_of(site, value, shape)
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


def map_misfit(site: Site, value: Value, declared: SlotMap, shape: tuple[int, ...]) -> str | None:
    """Describe an operand's difference from its declared slot map."""
    if not isinstance(value.fact, SlotEntry) or len(shape) > 1:
        return "a slot map, and is not one"
    if value.fact.stride != 1:
        return "a slot map, and is one times a number"
    if value.fact.guard is not None or value.fact.alternatives:
        return "a slot map, and some entries may be replaced by a row past the end of the pool"
    bound_input = site.prover.bound.inputs[value.fact.leaf]
    entry = bound_input.entry
    assert isinstance(entry, SlotMap)
    if value.fact.offset is not None:
        return f"a slot map, and is {bound_input.path} less the rows of other devices"
    differs = entry.role not in (declared.role, "both")
    if differs or (entry.size, entry.null, entry.local) != (declared.size, declared.null, declared.local):
        return f"{declared}, and is {bound_input.path}, {entry}"
    return None


def table_misfit(site: Site, value: Value, declared: PageTable) -> str | None:
    """Describe an operand's difference from its declared page table."""
    fact = value.fact
    if not isinstance(fact, PageEntry) or axis_of(value.owner) not in (None, 0):
        return "a page table, and is not one"
    bound_input = site.prover.bound.inputs[fact.leaf]
    entry = bound_input.entry
    assert isinstance(entry, PageTable)
    if (fact.stride, fact.spare) != (1, 0) or fact.alternatives - ({"past"} if declared.role == "write" else set()):
        return f"a page table, and is computed of {bound_input.path}: it may hold something else than its entries"
    differs = entry.role not in (declared.role, "both")
    if differs or (entry.size, entry.page_size, entry.null) != (declared.size, declared.page_size, declared.null):
        return f"{declared}, and is {bound_input.path}, {entry}"
    return None
