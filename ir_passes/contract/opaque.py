"""Operands and results of declared operations, and pairs of their pools."""

from collections.abc import Iterator, Sequence

from ir_passes.contract.entries import Lane, Opaque, Packed, PageTable, Pool, SlotMap

Shape = tuple[int, ...]


def donors(declaration: Opaque) -> dict[int, int]:
    """Return pool result -> operand that it succeeds."""
    operands: dict[str, list[int]] = {}
    for k, entry in enumerate(declaration.inputs):
        if isinstance(entry, Pool):
            operands.setdefault(entry.group, []).append(k)
    pools = [(k, operands.get(entry.group)) for k, entry in enumerate(declaration.outputs) if isinstance(entry, Pool)]
    return {k: operand.pop(0) for k, operand in pools if operand}


def fits(declaration: Opaque, operands: Sequence[Shape], results: Sequence[Shape]) -> bool:
    """True if a call has the declared operands, results, dimensions and axes."""
    sides = (declaration.inputs, operands), (declaration.outputs, results)
    if any(len(entries) != len(shapes) for entries, shapes in sides):
        return False
    pairs = [pair for side in sides for pair in zip(*side, strict=True)]
    axes = [(entry.axis, shape) for entry, shape in pairs if isinstance(entry, Lane | Packed | Pool)]
    named = [(entry.dims, shape) for entry, shape in pairs if isinstance(entry, Pool) and entry.dims is not None]
    has_axes = all(0 <= axis < len(shape) for axis, shape in axes)
    return has_axes and all(len(dims) == len(shape) for dims, shape in named)


def lengths_of(declaration: Opaque) -> Iterator[int]:
    for k, entry in enumerate(declaration.inputs):
        if isinstance(entry, Lane) and entry.role == "length":
            yield k


def maps_of(declaration: Opaque, group: str) -> Iterator[tuple[int, SlotMap | PageTable]]:
    for k, entry in enumerate(declaration.inputs):
        if isinstance(entry, SlotMap | PageTable) and group in entry.names:
            yield k, entry
