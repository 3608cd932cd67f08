"""One-to-one correspondence of lanes' equations, where no lane sees another lane's writes."""

from collections.abc import Iterator, Sequence
from typing import Any

from ir_passes.contract.declared import CROSSING, declaration_of
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import computing_params
from ir_passes.jaxpr.dtypes import to_numpy
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.primitives import OPAQUE, WRITES
from ir_passes.rewrites.lane_owners import LaneOwners
from ir_passes.rewrites.pool_access import Box, SlotIndex


class Different(Exception):
    """Two lanes differ, or their work cannot be batched; the message has the line."""


class SameWork:
    """Corresponding equations of all lanes.

    Attributes:
        lanes: lane -> equations; the k-th equations of all lanes correspond.
        named: equations of lane 0 that select parts of entries, in order.
        first: variable of any lane -> corresponding variable of lane 0.
        alike: variable of lane 0 -> corresponding variables by lane.
        ids: ids of the equations of all lanes.

    Raises:
        Different: two lanes differ.
    """

    def __init__(self, owners: LaneOwners, lanes: Sequence[Sequence[ir.JaxprEqn]], first: dict[ir.Var, ir.Var]) -> None:
        self.owners, self.lanes, self.first = owners, lanes, dict(first)
        self.named: list[ir.JaxprEqn] = []
        for lane, eqns in enumerate(lanes):
            for eqn, other in zip(lanes[0], eqns, strict=False):
                self._match(eqn, other, lane)
            if len(eqns) != len(lanes[0]):
                raise Different(f"lane 0 has {len(lanes[0])} equations, lane {lane} has {len(eqns)}")
        self.ids = frozenset(id(eqn) for eqns in lanes for eqn in eqns)
        self.alike: dict[ir.Var, list[ir.Var]] = {}
        for var in sorted(self.first, key=lambda var: owners.lane_of.get(var, 0)):
            self.alike.setdefault(self.first[var], []).append(var)

    def first_version(self, version: ir.Atom) -> ir.Var:
        """Return the version of a pool before this work."""
        makers = self.owners.accesses.makers
        while version in makers and id(makers[version]) in self.ids:
            version = makers[version].invars[0]
        assert not isinstance(version, ir.Literal)
        return version

    def _match(self, eqn: ir.JaxprEqn, other: ir.JaxprEqn, lane: int) -> None:
        difference = self._difference(eqn, other, lane)
        if difference:
            place = f"{other.primitive.name} at {ir.source_of(other)}"
            raise Different(f"lanes 0 and {lane} differ in {difference} of {place}")
        self.first.update(zip(other.outvars, eqn.outvars, strict=True))

    def _difference(self, eqn: ir.JaxprEqn, other: ir.JaxprEqn, lane: int) -> str:
        if eqn.primitive is not other.primitive:
            return f"{eqn.primitive.name} instead"
        if ir.types([*eqn.invars, *eqn.outvars]) != ir.types([*other.invars, *other.outvars]):
            return "the types"
        if not self.owners.roots.keys().isdisjoint((eqn.outvars[0], other.outvars[0])):
            return "" if self._same_roots(eqn, other, lane) else "the part"
        box, other_box = (self.owners.boxes.get(id(each)) for each in (eqn, other))
        compared = list(range(len(eqn.invars)))
        if box is not None and other_box is not None:
            if not _same_box(box, other_box, lane):
                return "the box"
            if eqn.primitive.name == "slice":
                return ""
            compared = compared[updates_of(eqn)]
        elif box is not other_box:
            return "the row"
        if eqn.params is not other.params:
            if fingerprint(computing_params(eqn)) != fingerprint(computing_params(other)):
                return "the parameters"
        different = (i for i in compared if not self._same(eqn.invars[i], other.invars[i]))
        return next((f"operand {i}" for i in different), "")

    def _same(self, atom: ir.Atom, other: ir.Atom) -> bool:
        if isinstance(atom, ir.Literal) or isinstance(other, ir.Literal):
            literals = isinstance(atom, ir.Literal) and isinstance(other, ir.Literal)
            return literals and to_numpy(atom.val).tobytes() == to_numpy(other.val).tobytes()
        lanes, value = self.owners.lane_of, self.owners.accesses.value
        if other in lanes:
            return self._same_name(atom, other) if other not in self.first else self.first[other] is atom
        same_type = atom not in lanes and ir.types([atom]) == ir.types([other])
        return same_type and value(atom).number == value(other).number

    def _same_name(self, var: ir.Var, other: ir.Var) -> bool:
        """True if two variables select corresponding parts of two lanes' entries."""
        owners, made_by, fact_of = self.owners, self.owners.accesses.made_by, self.owners.accesses.index
        if var not in owners.names or other not in owners.names:
            return False
        entry, other_entry = fact_of(var), fact_of(other)
        if isinstance(entry, SlotIndex) and isinstance(other_entry, SlotIndex) and var not in owners.roots:
            corresponds = (entry, other_entry) == (SlotIndex(entry.map, 0), SlotIndex(entry.map, owners.lane_of[other]))
            if not corresponds or ir.types([var]) != ir.types([other]):
                return False
            self.first[other] = var
        else:
            self._match(made_by[var], made_by[other], owners.lane_of[other])
        if var is other and var in made_by:
            self.named.append(made_by[var])
        return self.first[other] is var

    def _same_roots(self, eqn: ir.JaxprEqn, other: ir.JaxprEqn, lane: int) -> bool:
        root, other_root = (self.owners.roots.get(each.outvars[0]) for each in (eqn, other))
        if root is None or other_root is None or not self._same(root.source, other_root.source):
            return False
        if (root.dim, root.lane, other_root.lane) != (other_root.dim, 0, lane):
            return False
        if eqn.primitive.name == "slice":
            starts, other_starts = (_without(each.params["start_indices"], root.dim) for each in (eqn, other))
            return starts == other_starts
        starts, other_starts = (_without(each.invars[1:], root.dim) for each in (eqn, other))
        return all(map(self._same, starts, other_starts))


def _without(items: Sequence[Any], place: int) -> list[Any]:
    return [item for i, item in enumerate(items) if i != place]


def _same_box(box: Box, other: Box, lane: int) -> bool:
    """True for the same box of lane 0's row and of another lane's row."""
    rows: tuple[Any, Any] = (0, lane)
    if isinstance(box.row, SlotIndex):
        rows = SlotIndex(box.row.map, 0), SlotIndex(box.row.map, lane)
    same_columns = _without(box.starts, box.axis) == _without(other.starts, other.axis)
    return (box.row, other.row) == rows and box.sizes == other.sizes and same_columns


def updates_of(eqn: ir.JaxprEqn) -> slice:
    """Return the slice of an access's operands that are updates, empty for a read."""
    if eqn.primitive.name == "dynamic_update_slice":
        return slice(1, 2)
    return slice(2, 3) if eqn.primitive.name in WRITES else slice(0, 0)


BARRED = frozenset(
    """
    cond while shard_map sharding_constraint optimization_barrier custom_call tpu_custom_call rng_bit_generator
    rng_uniform custom_vmap_call custom_partitioning
    """.split()
).union(OPAQUE)
"""Operations that `jax.vmap` does not batch lane by lane, or runs for all lanes if one lane needs them."""


def check_batchable(work: SameWork) -> None:
    """Raise Different for equations not batched lane by lane, or unknown indices."""
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
    """Return the first and last version of each written pool; Different for reads in between."""
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
