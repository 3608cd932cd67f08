"""Opaque calls by their declarations: kernels, callbacks and custom calls."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ir_passes.contract.contract import BoundContract, Lane, Opaque, Packed, PageTable, Pool, Shared, SlotMap
from ir_passes.contract.declared import declaration_of, opaque_of
from ir_passes.contract.opaque import donors, fits, lengths_of, maps_of
from ir_passes.contract.opaque_names import declared_name, exact_name, same_body
from ir_passes.jaxpr import ir, primitives
from ir_passes.kernels import ReadKernels, read_kernels
from ir_passes.kernels.memory import UnreadableKernel
from ir_passes.proof import owners, refusals
from ir_passes.proof.assumed import note_callback
from ir_passes.proof.concerned import describe
from ir_passes.proof.owners import COMMON, Common, LaneRows, Mixed, OneLane, Owner, PoolRows, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing.page_tables import page_fault
from ir_passes.proof.rules.addressing.pool_rows import record, row_fault
from ir_passes.proof.rules.addressing.slot_maps import map_fault
from ir_passes.proof.rules.call_advice import ambiguous_name, other_entries, other_types, undeclared_call, unequal_rows
from ir_passes.proof.rules.calls import declared_result
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import disordered
from ir_passes.proof.values import Fact, PageEntry, SlotEntry, Value


@rule(*primitives.OPAQUE, everything=True)
def opaque(site: Site, *operands: Value) -> list[Value]:
    """Apply the declaration with the name of the call's target.

    A debugging callback without a declaration gives a note only: it has no results.
    """
    declaration = opaque_of(site.eqn, site.prover.bound.opaque)
    if declaration is None and site.name in ("debug_callback", "debug_print") and not site.eqn.outvars:
        note_callback(site)
        return []
    if declaration is None:
        text = undeclared_call(site, operands)
        site.report(*text)
        owner = site.mixed(*text)
        return [Value(owner) for _ in site.eqn.outvars]
    _check_one_body(site, declaration[0])
    return _Declared(site, *declaration, operands).results()


def _check_one_body(site: Site, name: str) -> None:
    calls = site.prover.declared.setdefault(name, [])
    if any(site.eqn is call for call in calls):
        return
    other_calls = [call for call in calls if not same_body(call, site.eqn)]
    if other_calls:
        site.report(*ambiguous_name(site, name, other_calls))
    else:
        calls.append(site.eqn)


def undeclared(program: ir.ClosedJaxpr, bound: BoundContract) -> ReadKernels:
    """Read kernels that are not declared nor inside declared functions."""
    first: dict[str, str] = {}

    def is_declared(eqn: ir.JaxprEqn) -> bool:
        return declaration_of(eqn) is not None or opaque_of(eqn, bound.opaque) is not None

    def is_written(eqn: ir.JaxprEqn) -> bool | None:
        name = declared_name(eqn, bound.grids)
        if name is not None and first.setdefault(name, exact_name(eqn)) != exact_name(eqn):
            raise UnreadableKernel(f"{name!r} is declared as one kernel and names {first[name]} and {exact_name(eqn)}")
        return None if name is None else bound.grids[name].written

    return read_kernels(program, keep=is_declared, is_written=is_written)


@dataclass(frozen=True)
class _Declared:
    site: Site
    name: str
    entry: Opaque
    operands: tuple[Value, ...]

    def results(self) -> list[Value]:
        lanes = self._lanes()
        if isinstance(lanes, Mixed):
            return [Value(lanes) for _ in self.site.eqn.outvars]
        return [self._result(k, declared, lanes) for k, declared in enumerate(self.entry.outputs)]

    def _result(self, k: int, declared: Any, lanes: Owner) -> Value:
        match declared:
            case Pool():
                return self._successor(self.operands[donors(self.entry)[k]], lanes, declared)
            case Packed(axis, None, layout):
                return Value(LaneRows(axis, packed=layout))
            case Lane() | Shared():
                return declared_result(self.site, self.name, k, declared, lanes)
        raise TypeError(f"result {k} is declared {declared}")

    def _successor(self, pool: Value, lanes: Owner, declared: Pool) -> Value:
        version = self.site.prover.versions.succeed(pool.version)
        # the length of a lane that is assumed idle is 0
        idle = any(self.operands[k].range == (0, 0) for k in lengths_of(self.entry))
        intact = pool.intact if idle else None
        if not isinstance(pool.owner, PoolRows):
            return Value(moved(lanes, declared.axis), version=version, intact=intact)
        (place,) = (k for k, entry in maps_of(self.entry, declared.group) if entry.role != "read")
        fact = self.operands[place].fact
        assert isinstance(fact, SlotEntry | PageEntry)
        return Value(replace(pool.owner, writers=pool.owner.writers | {fact.leaf}), version=version, intact=intact)

    def _lanes(self) -> Owner:
        """Return the owner of all lanes; `Mixed` for a misfit."""
        site = self.site
        for value in self.operands:
            if isinstance(value.owner, Mixed):
                return value.owner
        problem = self._misfit()
        if problem is None:
            lanes = site.join(*(moved(value.owner, 0) for value, _, _, _ in self._rows()))
            if isinstance(lanes, Mixed):
                return lanes
            pools = [entry for entry in (*self.entry.inputs, *self.entry.outputs) if isinstance(entry, Pool)]
            if isinstance(lanes, LaneRows | OneLane) and lanes.packed and pools:
                return site.mixed(*refusals.TOKENS_AND_POOLS)
            if disordered(lanes):
                return site.mixed(*refusals.ORDER_MEETS_CALL)
            if self._is_packed and lanes not in (COMMON, LaneRows(0)):
                problem = f"packed tokens meet {describe(lanes)}, and not all lanes"
            lanes = LaneRows(0) if self._is_packed else lanes
            problem = problem or (self._unequal() if isinstance(lanes, LaneRows) else None)
            if problem is None:
                return self._accessed(lanes)
        text = refusals.OTHER_DECLARATION(name=self.name, problem=problem)
        site.report(*text)
        return site.mixed(*text)

    def _rows(self) -> Iterator[tuple[Value, str, tuple[int, ...], int]]:
        """Yield operands with rows: value, name, shape, axis of rows."""
        for k, (value, declared) in enumerate(zip(self.operands, self.entry.inputs, strict=True)):
            owner = value.owner
            if isinstance(owner, PoolRows) or isinstance(declared, Shared | Packed):
                continue
            if isinstance(declared, PageTable) and isinstance(owner, LaneRows) and owner.inner > 1:
                # in a flat table the pages of a lane are consecutive
                rows = self.site.shapes[k][0] // owner.inner, *self.site.shapes[k][1:]
                yield value.replace(owner=replace(owner, inner=1)), f"operand {k}", rows, 0
                continue
            yield value, f"operand {k}", self.site.shapes[k], getattr(declared, "axis", 0)

    @property
    def _is_packed(self) -> bool:
        return any(isinstance(entry, Packed) for entry in (*self.entry.inputs, *self.entry.outputs))

    def _unequal(self) -> str | None:
        lengths = {name: shape[axis : axis + 1] for _, name, shape, axis in self._rows()}
        for k, (var, declared) in enumerate(zip(self.site.eqn.outvars, self.entry.outputs, strict=True)):
            if isinstance(declared, Lane):
                lengths[f"result {k}"] = ir.shape_of(var)[declared.axis : declared.axis + 1]
        if self._is_packed:
            lengths["the step"] = (self.site.prover.bound.lanes,)
        if len(set(lengths.values())) == 1:
            return None
        return unequal_rows(lengths)

    def _accessed(self, lanes: Owner) -> Owner:
        """Return `lanes`, or the fault of an access to a pool."""
        site, written = self.site, set(donors(self.entry).values())
        for k, declared in enumerate(self.entry.inputs):
            pool = self.operands[k].owner
            if not isinstance(declared, Pool) or not isinstance(pool, PoolRows):
                continue
            for place, declared_map in maps_of(self.entry, declared.group):
                index, fact = self.operands[place], self.operands[place].fact
                assert isinstance(fact, SlotEntry | PageEntry)
                for write in (False, True):
                    if declared_map.role == ("read" if write else "write") or (write and k not in written):
                        continue
                    if isinstance(fact, PageEntry):
                        split = getattr(index.owner, "split", ())
                        drops = declared_map.role == "write"
                        fault = page_fault(site, pool, fact, split, site.shapes[k], drops=drops, write=write)
                    else:
                        fault = map_fault(site, pool, fact, site.shapes[k], drops=False, write=write)
                    if fault is None and pool.split and getattr(index.owner, "split", ()) != pool.split:
                        fault = refusals.MAP_NOT_SPLIT
                    if fault is not None:
                        return row_fault(site, fault, pool, index, site.shapes[k], write)
                    record(site, pool, index, index.owner, site.shapes[place], write)
            is_counted = bool(pool.split) and self._counted_within(declared.group)
            if k in written and isinstance(lanes, LaneRows | OneLane) and lanes.split and not is_counted:
                along = ", ".join(owners.mesh_axes(lanes.split)) or "a loop"
                return site.mixed(*refusals.CALL_WRITES_COPIES(name=self.name, along=along))
        return lanes

    def _misfit(self) -> str | None:
        """Describe the call's difference from its declaration, if any."""
        entry, eqn, site = self.entry, self.site.eqn, self.site
        if not fits(entry, site.shapes, ir.shapes(eqn.outvars)):
            return other_types(eqn, entry)
        if ir.aliases_of(eqn) != dict(entry.aliases):
            return f"declared with aliases={dict(entry.aliases)}, called with {ir.aliases_of(eqn)}"
        for k, donor in donors(entry).items():
            old, new = ir.types([eqn.invars[donor], eqn.outvars[k]])
            if old != new or entry.inputs[donor] != entry.outputs[k]:
                return f"result {k}, {new}, is declared the successor of operand {donor}, {old}"
        for k, (value, declared) in enumerate(zip(self.operands, entry.inputs, strict=True)):
            problem = self._operand_misfit(value, declared, site.shapes[k])
            if problem is not None:
                return f"operand {k} is declared {problem}"
        return None

    def _operand_misfit(self, value: Value, declared: Any, shape: tuple[int, ...]) -> str | None:
        owner, does_fit, problem = value.owner, False, f"{declared}, and holds {describe(value.owner)}"
        match declared:
            case Shared():
                does_fit, problem = isinstance(owner, Common), "Shared, and differs between lanes"
            case Lane(axis):
                does_fit = not isinstance(owner, PoolRows) and axis_of(owner) in (None, axis)
                problem = f"Lane(axis={axis}), and holds {describe(owner)}"
            case Packed(axis, None, layout):
                does_fit = owner in (COMMON, LaneRows(axis, packed=layout))
            case Packed(_, _, layout):
                does_fit = self.site.layout_of(value, shape) == layout
                problem = f"{declared}, and is not the one of the contract"
            case Pool():
                return self._pool_misfit(value, declared)
            case SlotMap():
                return self._map_misfit(value.fact if len(shape) < 2 else None, declared)
            case PageTable():
                return self._map_misfit(value.fact if axis_of(owner) in (None, 0) else None, declared)
        return None if does_fit else problem

    def _map_misfit(self, fact: Fact | None, declared: SlotMap | PageTable) -> str | None:
        """Describe the difference from unchanged entries of an input like the declared one."""
        noun, kind = ("slot map", SlotEntry) if isinstance(declared, SlotMap) else ("page table", PageEntry)
        if not isinstance(fact, kind):
            return f"a {noun}, and is not one"
        source, unchanged = self.site.prover.bound.inputs[fact.leaf], kind(fact.leaf)
        entry = source.entry
        assert isinstance(entry, type(declared))
        if isinstance(fact, SlotEntry):
            unchanged = replace(unchanged, non_null=fact.non_null)
        elif declared.role == "write":
            unchanged = replace(unchanged, alternatives=fact.alternatives & {"past"})
        if fact != unchanged:
            return f"a {noun}, and {other_entries(fact, source.path)}"
        sizes = [(x.size, x.null, getattr(x, "page_size", 1)) for x in (entry, declared)]
        is_local = isinstance(fact, PageEntry) or entry.local == declared.local
        does_fit = sizes[0] == sizes[1] and is_local and entry.role in (declared.role, "both")
        return None if does_fit else f"{declared}, and is {source.path}, {entry}"

    def _pool_misfit(self, value: Value, declared: Pool) -> str | None:
        owner, prover = value.owner, self.site.prover
        leaf = prover.versions.leaf_of.get(value.version) if value.version is not None else None
        group = declared.group if leaf is None else getattr(prover.bound.inputs[leaf].entry, "group", "")
        if group != declared.group:
            return f"a pool of group {declared.group!r}, and is one of group {group!r}"
        if not any(maps_of(self.entry, declared.group)):
            has_lane_rows = isinstance(owner, LaneRows) and replace(owner, start=0, split=()) == LaneRows(declared.axis)
            problem = f"a pool with one row for each lane along axis {declared.axis}, and holds {describe(owner)}"
            return None if has_lane_rows or isinstance(owner, OneLane) else problem
        if not isinstance(owner, PoolRows) or owner.axis != declared.axis or owner.inner != 1:
            return f"a pool with a slot map, rows along axis {declared.axis}, and holds {describe(owner)}"
        is_split = owner.split and not self._counted_within(declared.group)
        problem = f"a pool with all its rows, and they are split over devices along {', '.join(owner.split)}"
        return problem if is_split else None

    def _counted_within(self, group: str) -> bool:
        return all(getattr(row_map, "local", None) is not None for _, row_map in maps_of(self.entry, group))
