"""The check that the work of all lanes may run side by side: no lane sees another's writes."""

from collections.abc import Iterator, Sequence

from ir_passes.contract.declared import CROSSING, declaration_of
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import OPAQUE
from ir_passes.rewrites.batched_work import first_version
from ir_passes.rewrites.lane_owners import LaneOwners
from ir_passes.rewrites.pool_access import WRITES
from ir_passes.rewrites.same_work import Different, SameWork
from ir_passes.rewrites.slot_entries import SlotIndex

# Operations that JAX does not batch lane by lane, or would run for all lanes where one asks for it.
BARRED = frozenset(
    """
    cond while shard_map sharding_constraint optimization_barrier custom_call tpu_custom_call rng_bit_generator
    rng_uniform custom_vmap_call custom_partitioning
    """.split()
).union(OPAQUE)


def check_batchable(work: SameWork) -> None:
    """Raise `Different` if an equation is one that `jax.vmap` does not run lane by lane."""
    for eqn in work.lanes[0]:
        barred = next(_barred(eqn), None)
        if barred is not None:
            raise Different(f"{barred} at {ir.source_of(eqn)} is not batched")


def _barred(eqn: ir.JaxprEqn) -> Iterator[str]:
    name = eqn.primitive.name
    crossing = name == "name" and str(eqn.params.get("name")).startswith(CROSSING)
    if name in BARRED or name.startswith("random_") or crossing or declaration_of(eqn) is not None:
        yield name
    for body in ir.sub_jaxprs(eqn):
        for inner in body.eqns:
            yield from _barred(inner)


def written_pools(owners: LaneOwners, work: SameWork) -> dict[ir.Var, ir.Var]:
    """First and last version of every pool that the work writes, if lanes may change their order.

    Each lane has to read its own row as its own writes left it, and no one else may see a version in between.

    Raises:
        Different: they may not.
    """
    accesses, mine = owners.accesses, work.equations
    places = {id(eqn): place for place, eqn in enumerate(owners.graph.program.jaxpr.eqns)}
    writes = sorted(
        (eqn for eqns in work.lanes for eqn in eqns if eqn.primitive.name in WRITES and id(eqn) in owners.own),
        key=lambda eqn: places[id(eqn)],
    )
    last: dict[ir.Var, ir.Var] = {}
    order: dict[ir.Var, int] = {}
    for eqn in writes:
        version, result = accesses.version(eqn), eqn.outvars[0]
        start = first_version(owners, work, eqn)
        if version is not last.get(start, version) or len(accesses.writers[version]) != 1:
            raise Different(f"a version of a pool is written twice at {ir.source_of(eqn)}")
        order.setdefault(start, 0)
        order[result] = order[version] + 1
        last[start] = result
    for eqns in work.lanes:
        _check_reads(owners, work, eqns, order)
    outputs = {id(atom) for atom in owners.graph.program.jaxpr.outvars}
    for start, end in last.items():
        for version in order:
            inside = version is not end and version is not start and _first_of(owners, work, version) is start
            others = [eqn for eqn in accesses.readers.get(version, []) if id(eqn) not in mine]
            if inside and (others or id(version) in outputs):
                raise Different(f"a version of a pool in between is read at {_where(others)}")
    return last


def _where(eqns: Sequence[ir.JaxprEqn]) -> str:
    return ir.source_of(eqns[0]) if eqns else "the end"


def _first_of(owners: LaneOwners, work: SameWork, version: ir.Var) -> ir.Var:
    """The version before all of the work from which a version was made."""
    maker = owners.accesses.makers.get(version)
    return first_version(owners, work, maker) if maker is not None and id(maker) in work.equations else version


def _check_reads(owners: LaneOwners, work: SameWork, eqns: Sequence[ir.JaxprEqn], order: dict[ir.Var, int]) -> None:
    """Check that each of a lane's reads sees the lane's earlier writes, and no later one."""
    accesses = owners.accesses
    written: dict[ir.Var, int] = {}
    maps: dict[ir.Var, int | None] = {}
    for eqn in eqns:
        versions = [var for var in ir.variables(eqn.invars) if var in accesses.versions]
        for version in versions:
            start = _first_of(owners, work, version)
            if start not in order:
                continue
            if id(eqn) not in owners.own:
                raise Different(f"{eqn.primitive.name} at {ir.source_of(eqn)} reads more of a pool than its lane's row")
            row = owners.own[id(eqn)].row
            slots = row.map if isinstance(row, SlotIndex) else None
            if maps.setdefault(start, slots) != slots:
                raise Different(f"rows of two slot maps are used at {ir.source_of(eqn)}")
            if eqn.primitive.name in WRITES:
                written[start] = order[eqn.outvars[0]]
            elif written.get(start, 0) > order[version]:
                raise Different(f"an old version of a row is read at {ir.source_of(eqn)}")
