"""Check that no lane sees another lane's writes if all lanes run together."""

from collections.abc import Iterator, Sequence

from ir_passes.contract.declared import CROSSING, declaration_of
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import OPAQUE
from ir_passes.rewrites.pool_access import WRITES
from ir_passes.rewrites.same_work import Different, SameWork
from ir_passes.rewrites.slot_entries import SlotIndex

# Operations that `jax.vmap` does not batch lane by lane, or runs for all lanes if one lane needs them.
BARRED = frozenset(
    """
    cond while shard_map sharding_constraint optimization_barrier custom_call tpu_custom_call rng_bit_generator
    rng_uniform custom_vmap_call custom_partitioning
    """.split()
).union(OPAQUE)


def check_batchable(work: SameWork) -> None:
    """Check that all equations can be batched.

    Raises:
        Different: `jax.vmap` does not run an equation lane by lane, or an index of a pool is unknown.
    """
    for eqn in work.lanes[0]:
        barred = next(_barred(eqn), None)
        if barred is not None:
            raise Different(f"{barred} at {ir.source_of(eqn)} is not batched")
        box = work.owners.boxes.get(id(eqn))
        if box is not None and None in box.starts:
            place = f"{eqn.primitive.name} at {ir.source_of(eqn)}"
            raise Different(f"{place} has an index that is neither a constant nor an entry of a slot map")


def _barred(eqn: ir.JaxprEqn) -> Iterator[str]:
    name = eqn.primitive.name
    crossing = name == "name" and str(eqn.params.get("name")).startswith(CROSSING)
    if name in BARRED or name.startswith("random_") or crossing or declaration_of(eqn) is not None:
        yield name
    for body in ir.sub_jaxprs(eqn):
        for inner in body.eqns:
            yield from _barred(inner)


def written_pools(work: SameWork) -> dict[ir.Var, ir.Var]:
    """Return the first and last version of each pool that the work writes.

    Raises:
        Different: a lane's read would see another version, or other equations read a version in between.
    """
    owners, accesses = work.owners, work.owners.accesses
    last: dict[ir.Var, ir.Var] = {}
    order: dict[ir.Var, int] = {}  # version -> number of writes before it
    for eqn in owners.graph.program.jaxpr.eqns:
        if id(eqn) not in work.ids or id(eqn) not in owners.boxes or eqn.primitive.name not in WRITES:
            continue
        (version,), result = ir.variables(eqn.invars[:1]), eqn.outvars[0]
        start = work.first_version(version)
        if version is not last.get(start, version) or len(accesses.writers[version]) != 1:
            raise Different(f"a version of a pool is written twice at {ir.source_of(eqn)}")
        order[result] = order.setdefault(version, 0) + 1
        last[start] = result
    for eqns in work.lanes:
        _check_reads(work, eqns, order)
    outputs = {id(atom) for atom in owners.graph.program.jaxpr.outvars}
    for version in order.keys() - last.keys() - set(last.values()):
        readers = [eqn for eqn in accesses.readers.get(version, []) if id(eqn) not in work.ids]
        if readers or id(version) in outputs:
            place = ir.source_of(readers[0]) if readers else "the end"
            raise Different(f"a version of a pool in between is read at {place}")
    return last


def _check_reads(work: SameWork, eqns: Sequence[ir.JaxprEqn], order: dict[ir.Var, int]) -> None:
    """Check that each read sees the lane's earlier writes and no later write."""
    boxes = work.owners.boxes
    written: dict[ir.Var, int] = {}
    maps: dict[ir.Var, int | None] = {}
    for eqn in eqns:
        for version in work.owners.accesses.versions_in(eqn):
            start, place = work.first_version(version), ir.source_of(eqn)
            if start not in order:
                continue
            if id(eqn) not in boxes:
                raise Different(f"{eqn.primitive.name} at {place} reads more of a pool than its lane's row")
            row = boxes[id(eqn)].row
            slots = row.map if isinstance(row, SlotIndex) else None
            if maps.setdefault(start, slots) != slots:
                raise Different(f"rows of two slot maps are used at {place}")
            if eqn.primitive.name in WRITES:
                written[start] = order[eqn.outvars[0]]
            elif written.get(start, 0) > order[version]:
                raise Different(f"an old version of a row is read at {place}")
