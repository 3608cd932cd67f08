"""Assumptions and notes of a certificate, of the contract and of calls.

An error here leaves out a statement; it proves no step.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ir_passes.contract.contract import BoundContract, Opaque, Packed, PageTable, Pool, SlotMap
from ir_passes.contract.entry_checks import null_maps
from ir_passes.contract.opaque import lengths_of
from ir_passes.contract.opaque_names import exact_name
from ir_passes.contract.statements import Assumption, Note, Statement
from ir_passes.jaxpr import ir
from ir_passes.kernels import ReadKernels
from ir_passes.proof.dims.classes import NAMED


def dimensions_not_proved(bound: BoundContract) -> list[Statement]:
    """Return the note about pools without named dimensions."""
    paths = [array.path for array in bound.inputs if isinstance(array.entry, Pool) and array.entry.dims is None]
    return [Note.DIMENSIONS_NOT_PROVED.statement(", ".join(paths))] if paths else []


_NULL_IN_ALL = ". A lane that is on the null row in it is so in every slot map that is not disjoint"


def assumed_of(bound: BoundContract) -> list[Statement]:
    """Return assumptions about slot maps, page tables and packed layouts."""
    assumptions, idle = [], null_maps(bound.inputs)
    for leaf, array in enumerate(bound.inputs):
        if isinstance(array.entry, SlotMap):
            entries = "the entries of active lanes" if array.entry.null else "all of them"
            if array.entry.local is not None:
                entries = f"within each device along {array.entry.local!r} {entries}"
            null = _NULL_IN_ALL if leaf in idle and len(idle) > 1 else ""
            size = array.entry.size
            assumptions.append(Assumption.SLOT_MAP.statement(array.path, size=size, which=entries, null=null))
            if array.entry.disjoint:
                assumptions.append(Assumption.DISJOINT_ROWS.statement(array.path))
        elif isinstance(array.entry, Packed) and array.entry.role:
            empty = "A lane without tokens is padding too, on null rows and null pages"
            rows = [other.entry for other in bound.inputs if isinstance(other.entry, Pool)]
            if any(pool.group not in bound.mapped for pool in rows):
                empty = "Every lane has a token"
            if len(bound.layouts) > 1:
                empty = f"A lane without tokens in one layout has none in the others. {empty}"
            assumptions.append(Assumption.PACKED.statement(array.path, empty=f"{empty}."))
        elif isinstance(array.entry, PageTable):
            null = ", nor is it the null page, page 0" if array.entry.null else ""
            if array.entry.packed and array.entry.role == "write":
                null += f", and of padding it is {array.entry.size}"
            device = "" if array.entry.local is None else f" of its device along {array.entry.local!r}"
            size = array.entry.size
            assumptions.append(Assumption.PAGE_TABLE.statement(array.path, size=size, device=device, null=null))
    return assumptions


def noted_kernels(kernels: ReadKernels) -> Iterator[Statement]:
    """Yield a note for each read kernel."""
    for eqn, _ in kernels.read:
        yield Note.KERNEL_READ.statement(f"{exact_name(eqn)}, called at {ir.source_of(eqn)}")


def assumed_grids(kernels: ReadKernels) -> Iterator[Statement]:
    """Yield the assumptions about each kernel with a declared grid."""
    for eqn, written in kernels.read:
        if written is None:
            continue
        place = f"{exact_name(eqn)}, called at {ir.source_of(eqn)}"
        yield Assumption.COMPUTED_GRID.statement(place)
        if written:
            yield Assumption.WRITTEN_RESULTS.statement(place)


def assumed_calls(declared: Mapping[str, Sequence[ir.JaxprEqn]], opaque: Mapping[str, Opaque]) -> Iterator[Statement]:
    """Yield the assumption for each declared call."""
    for name, calls in declared.items():
        kind = Assumption.OPAQUE_IDLE if [*lengths_of(opaque[name])] else Assumption.OPAQUE
        places = Counter(f"{exact_name(call)}, called at {ir.source_of(call)}" for call in calls)
        for place, times in places.items():
            yield kind.statement(f"{place} ({times} calls)" if times > 1 else place)


def assume_at(site: Any, kind: Assumption) -> None:
    """Assume something about an operation, named with its line or the innermost call's around it."""
    site.prover.assumed.add(kind.statement(_named(site)))


def note_callback(site: Any) -> None:
    """Note a debugging callback."""
    site.prover.notes.add(Note.DEBUG_CALLBACK.statement(_named(site)))


def _named(site: Any) -> str:
    calls = (site.eqn, *reversed(site.prover.callers))
    return f"{site.name} at {next((line for eqn in calls for line in ir.frames_of(eqn)), 'unknown')}"


def assume_names(site: Any, label: str) -> None:
    """Assume the dimensions named by an array's label, if any."""
    if site.name == "name" and label.startswith(NAMED):
        names = ", ".join(name or "." for name in label.removeprefix(NAMED).split(","))
        site.prover.assumed.add(Assumption.DIMENSIONS_NAMED.statement(names))


def assume_replicated(site: Any, splits: Sequence[Mapping[int, Sequence[str]]], devices: Mapping[str, int]) -> None:
    """Record assumptions about equal arguments and results of the devices of a shard_map.

    Args:
        splits: axis -> mesh axes that split it, for each argument.
        devices: number along each mesh axis.
    """
    several = {name for name, size in devices.items() if size > 1}
    if any(several - {name for names in split.values() for name in names} for split in splits):
        site.prover.assumed.add(Assumption.REPLICATED_ARGUMENTS.statement())
    if not site.params["check_vma"]:
        site.prover.notes.add(Note.REPLICATED_RESULTS.statement())


def note_indices(site: Any, access: Any, dim: int) -> None:
    """Note indices along other axes than the rows of a pool, possibly out of bounds."""
    for other in access.columns:
        if other != dim and not access.inside(other):
            site.prover.notes.add(Note.INDEX_INSIDE_ROW.statement(site.name, axis=other))
