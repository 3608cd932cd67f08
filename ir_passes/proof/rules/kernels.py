"""Special operations in the plain programs of kernels."""

from ir_passes.proof import refusals
from ir_passes.proof.owners import LaneRows
from ir_passes.proof.registry import rule
from ir_passes.proof.site import Site
from ir_passes.proof.values import Value


@rule("uninitialized", "empty", reads="dtype shape", ignores="out_sharding")
def uninitialized(site: Site) -> list[Value]:
    """Refuse uninitialised memory: it may hold data of any lane."""
    return [Value(site.mixed(*refusals.UNINITIALIZED))]


@rule("kernel_padding", reads="dim", ignores="size")
def kernel_padding(site: Site, array: Value) -> list[Value]:
    """Treat foreign memory after the rows of all lanes as rows of no lane.

    Rows 0 to N - 1 of the result are the operand's rows, one per lane in order. In an owner `LaneRows(axis)` from lane
    0 the unspecified rows from N on belong to no lane: every rule keeps row i of a result independent of other rows,
    and no output has rows from N on. At other positions, as along a row's channels or after a shared array, the memory
    may be another lane's.
    """
    owner, lanes = array.owner, site.prover.bound.lanes
    dim = site.params["dim"]
    if owner == LaneRows(dim) and site.shapes[0][dim] == lanes:
        return [Value(owner)]
    return [Value(site.mixed(*refusals.FOREIGN_MEMORY))]


@rule("or_old")
def or_old(site: Site, new: Value, old: Value) -> list[Value]:
    return [new if new.number == old.number else Value(site.join(new.owner, old.owner))]


@rule("kernel_index", reads="bound", ignores="kernel")
def kernel_index(site: Site, index: Value) -> list[Value]:
    """Check that an index of a kernel is in bounds: no operation clamps it."""
    bound = site.params["bound"]
    span = index.range
    if span is None or span[0] < 0 or span[1] >= bound:
        site.report(*refusals.kernel_index(bound, span, site.params["kernel"]))
    return [index]
