"""Checks of entries for mistakes of their authors; no verdict depends on them."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ir_passes.contract import fault_texts
from ir_passes.contract.entries import (
    ENTRIES,
    ROW_MAPS,
    Bound,
    ComputedGrid,
    Lane,
    LaneRole,
    Opaque,
    Packed,
    PackedRole,
    PageTable,
    Pool,
    Shared,
    SharedRole,
    SlotMap,
    SlotRole,
    Unspecified,
)
from ir_passes.contract.faults import ContractFault
from ir_passes.contract.opaque import donors, maps_of
from ir_passes.contract.opaque_names import exact_name, operations
from ir_passes.jaxpr import ir, primitives


def check_entries(inputs: Sequence[Bound], outputs: Sequence[Bound]) -> None:
    """Raise ContractError for unknown roles and groups, and outputs with entries of inputs."""
    for bound in (*inputs, *outputs):
        check_role(bound.path, bound.entry)
    for bound in outputs:
        if getattr(bound.entry, "role", None) in ("length", "active", "active_count"):
            raise ContractFault.INPUT.error(bound.path, fault_texts.IDLE_OUTPUT)
        if isinstance(bound.entry, ROW_MAPS):
            raise ContractFault.INPUT.error(bound.path, f"a {type(bound.entry).__name__} is an input, never an output")
    pools = [(bound, bound.entry) for bound in (*inputs, *outputs) if isinstance(bound.entry, Pool)]
    for bound, pool in pools:
        if pool.dims is not None and len(pool.dims) != len(bound.shape):
            raise ContractFault.DIMS.error(bound.path, f"{len(pool.dims)} dims {pool.dims}, got shape {bound.shape}")
    tokens = [bound for bound in (*inputs, *outputs) if bound.layout is not None]
    described = {bound.layout for bound in inputs if isinstance(bound.entry, Packed) and bound.entry.role is not None}
    for layout in dict.fromkeys(bound.layout for bound in tokens):
        lengths = {bound.path: bound.tokens for bound in tokens if bound.layout == layout and bound.tokens is not None}
        if layout not in described:
            raise ContractFault.PACKED.error("", fault_texts.no_description(layout, lengths, described))
    groups = {pool.group for _, pool in pools}
    for bound in inputs:
        if not isinstance(bound.entry, SlotMap | PageTable):
            continue
        for name in ("size", "page_size"):
            if (number := getattr(bound.entry, name, 1)) < 1:
                raise ContractFault.SIZE.error(bound.path, f"{name} must be at least 1, got {number}")
        for name in bound.entry.names:
            if name not in groups:
                raise ContractFault.GROUP.error(bound.path, fault_texts.no_group(name, groups))


def null_maps(inputs: Sequence[Bound]) -> list[int]:
    """Return indices of the slot maps with idle lanes on the null row."""
    maps = [(k, array.entry) for k, array in enumerate(inputs) if isinstance(array.entry, SlotMap)]
    return [k for k, entry in maps if entry.null and not entry.disjoint]


def check_role(where: str, entry: Any) -> None:
    """Raise ContractError for an unknown role."""
    if not isinstance(entry, Shared | Lane | Packed | SlotMap | PageTable):
        return
    of_arrays = {Shared: SharedRole, Lane: LaneRole, Packed: PackedRole}
    known_roles = {kind: (None, *get_args(roles)) for kind, roles in of_arrays.items()}
    roles = known_roles.get(type(entry), get_args(SlotRole))
    if entry.role not in roles:
        raise ContractFault.ROLE.error(where, fault_texts.no_role(entry, roles))


def check_names(opaque: Mapping[str, Opaque | ComputedGrid], program: ir.ClosedJaxpr) -> None:
    """Raise ContractError for a declaration under a primitive's name."""
    for name in opaque:
        if name in primitives.OPAQUE:
            names = [exact_name(eqn) for eqn in operations(program.jaxpr) if eqn.primitive.name == name]
            raise ContractFault.OPAQUE_NAME.error(f"opaque {name!r}", fault_texts.primitive_name(names))


def check_opaque(name: str, declaration: Any) -> None:
    """Raise ContractError for a declaration of an impossible operation."""
    where = f"opaque {name!r}"
    if isinstance(declaration, ComputedGrid) and isinstance(declaration.written, bool):
        return
    if not isinstance(declaration, Opaque):
        raise ContractFault.OPAQUE.error(
            where, f"expected Opaque(inputs, outputs) or ComputedGrid(written=bool), got {declaration!r}"
        )
    for side, entries in (("operand", declaration.inputs), ("result", declaration.outputs)):
        for k, entry in enumerate(entries):
            _check_entry(f"{where}, {side} {k}", entry, side)
    groups = {entry.group for entry in declaration.inputs if isinstance(entry, Pool)}
    for k, entry in enumerate(declaration.inputs):
        if isinstance(entry, SlotMap | PageTable) and not set(entry.names) <= groups:
            missing = ", ".join(repr(group) for group in entry.names if group not in groups)
            raise ContractFault.GROUP.error(f"{where}, operand {k}", f"no operand is a pool of group {missing}")
    for k, entry in enumerate(declaration.outputs):
        if not isinstance(entry, Pool):
            continue
        donor = donors(declaration).get(k)
        if donor is None or declaration.inputs[donor] != entry:
            text = fault_texts.no_successor(entry, None if donor is None else (donor, declaration.inputs[donor]))
            raise ContractFault.SUCCESSOR.error(f"{where}, result {k}", text)
        roles = [row_map.role for _, row_map in maps_of(declaration, entry.group)]
        if roles and sum(role != "read" for role in roles) != 1:
            text = fault_texts.ONE_MAP.format(entry=entry, roles=", ".join(map(repr, roles)))
            raise ContractFault.MAPS.error(f"{where}, result {k}", text)
    packed = [entry for entry in (*declaration.inputs, *declaration.outputs) if isinstance(entry, Packed)]
    for layout in dict.fromkeys(entry.layout for entry in packed):
        if not any(entry.layout == layout and entry.role for entry in packed):
            raise ContractFault.PACKED.error(where, f"{layout!r} has no operand Packed(role='cu_seqlens')")
    counts = len(declaration.inputs), len(declaration.outputs)
    for operand, result in declaration.aliases.items():
        if not (0 <= operand < counts[0] and 0 <= result < counts[1]):
            message = f"aliases {operand}: {result} for {counts[0]} operands and {counts[1]} results"
            raise ContractFault.OPAQUE.error(where, message)
    fresh = declaration.fresh
    if fresh is not None and not (0 <= fresh < len(declaration.inputs) and declaration.inputs[fresh] == Lane()):
        raise ContractFault.OPAQUE.error(where, f"fresh is the index of an operand Lane(), got {fresh}")
    if declaration.scratch_bytes is not None and not callable(declaration.scratch_bytes):
        raise ContractFault.OPAQUE.error(where, fault_texts.NO_FUNCTION.format(declaration.scratch_bytes))


def _check_entry(where: str, entry: Any, side: str) -> None:
    if not isinstance(entry, ENTRIES):
        raise ContractFault.ENTRY.error(where, fault_texts.OPAQUE_ENTRY.format(entry))
    check_role(where, entry)
    if isinstance(entry, Packed) and entry.role not in ((None, "cu_seqlens") if side == "operand" else (None,)):
        raise ContractFault.ROLE.error(where, f"expected no role, or 'cu_seqlens' of an operand, got {entry}")
    if isinstance(entry, Lane | Packed | Pool) and entry.axis < 0:
        raise ContractFault.AXIS.error(where, f"axes count from 0, got {entry}")
    if isinstance(entry, Lane) and entry.role is not None and (side == "result" or entry.role != "length"):
        raise ContractFault.ROLE.error(where, fault_texts.LENGTH_ONLY.format(entry))
    if isinstance(entry, Unspecified) or (isinstance(entry, Shared) and entry.role is not None):
        raise ContractFault.ENTRY.error(where, f"{entry} says nothing about what an operation does")
    if isinstance(entry, SlotMap | PageTable) and side == "result":
        raise ContractFault.INPUT.error(where, "a slot map is an operand, never a result")
