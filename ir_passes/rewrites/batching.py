"""Batching of loops over sequences: equal work of all lanes in one operation."""

from collections.abc import Container, Sequence
from itertools import groupby
from typing import cast

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.contract.declared import CROSSING, declaration_of
from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.primitives import OPAQUE, WRITES
from ir_passes.jaxpr.rewriting import emit, rename, renamed
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.lane_work import Different, LaneOwners, SameWork, updates_of
from ir_passes.rewrites.pool_access import Box, PoolAccesses


def rebatch(graph: Graph, say: Say = quiet) -> Graph:
    """Replace the same equations on every lane by one batched computation.

    The reads of all lanes' rows become one gather by the slot map, `jax.vmap` batches the computations, and the writes
    become one scatter. Slot-map entries of active lanes are distinct; without a slot map, row i belongs to lane i.

    The order of accesses to each row and of effects stays. Refused, with the reason in the report, are lanes with
    different equations, conds, whiles, random numbers, opaque and declared operations, indices other than constants and
    slot-map entries, and pools with other accesses in between. Results are bit-identical except for dots with another
    number of rows, which differ by float32 rounding.
    """
    rewritten: Graph | None = graph
    result, reasons = graph, list[str]()
    while rewritten is not None and graph.bound.lanes > 1:
        result, reasons = rewritten, []
        rewritten = _rewrite_first(result, say, reasons)
    for reason in dict.fromkeys(reasons):
        say(f"left alone: {reason}")
    return graph if result is graph else graph.with_program(ir.without_dead(result.program))


def _rewrite_first(graph: Graph, say: Say, reasons: list[str]) -> Graph | None:
    """Rewrite the first level of batchable work, or return None."""
    owners = LaneOwners(PoolAccesses(graph))
    for _, work in sorted(owners.levels.items()):
        if not all(any(map(owners.is_work, eqns.values())) for eqns in work.lanes):
            continue
        try:
            work.match()
            for eqn in work.lanes[0].values():
                _check_batchable(eqn, work.box(eqn))
            if not work.lane_of:
                continue
            pools = work.last_versions()
            rewritten = _rewrite(graph, work, pools)
        except Different as difference:
            reasons.append(str(difference))
            continue
        entries = (graph.bound.inputs[owners.accesses.versions[pool]].entry for pool in pools)
        names = dict.fromkeys(repr(getattr(entry, "group", "")) for entry in entries)
        of_pools = f" of pool{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""
        say(f"re-batched {owners.lanes} lanes x {work.count} equations{of_pools}")
        return rewritten
    return None


BARRED = frozenset(
    """
    cond while shard_map sharding_constraint optimization_barrier custom_call tpu_custom_call rng_bit_generator
    rng_uniform custom_vmap_call custom_partitioning
    """.split()
).union(OPAQUE)
"""Operations that `jax.vmap` does not batch lane by lane, or runs for all lanes if one lane needs them."""


def _check_batchable(eqn: ir.JaxprEqn, box: Box | None) -> None:
    """Raise Different for an equation not batched lane by lane, or an unknown index."""
    inner = (other for body in ir.sub_jaxprs(eqn) for other in ir.all_eqns(body))
    for barred in (other.primitive.name for other in (eqn, *inner) if _is_barred(other)):
        raise Different(f"{barred} at {ir.source_of(eqn)} is not batched")
    if box is not None and None in box.starts:
        place = f"{eqn.primitive.name} at {ir.source_of(eqn)}"
        raise Different(f"{place} has an index that is neither a constant nor an entry of a slot map")


def _is_barred(eqn: ir.JaxprEqn) -> bool:
    name = eqn.primitive.name
    crossing = name == "name" and str(eqn.params.get("name")).startswith(CROSSING)
    return name in BARRED or name.startswith("random_") or crossing or declaration_of(eqn) is not None


def _rewrite(graph: Graph, work: SameWork, pools: dict[ir.Var, ir.Var]) -> Graph:
    """Replace the work of all lanes.

    Raises:
        Different: a row is written before a read.
    """
    jaxpr, owners = graph.program.jaxpr, work.owners
    lane_0, inputs = list(work.lanes[0].values()), work.inputs()
    boxes = [(eqn, box) for eqn in lane_0 if (box := work.box(eqn)) is not None]
    needed = [work.first_version(eqn.invars[0])[0] for eqn, _ in boxes]
    needed += [box.map for _, box in boxes if box.map is not None]
    needed += [var for eqn in lane_0 for var in work.operands(eqn) if var not in owners.lane_of]
    needed += [source for var in inputs for source in work.sources(var)]
    joins, pieces = _results(graph, work)

    def run(*values: jax.Array) -> list[jax.Array]:
        all_lanes = BatchedWork(work, dict(zip(operands, values, strict=True)))
        results = [all_lanes.arrays[version] for version in pools]
        results += [_joined(eqn, all_lanes.each(eqn.invars[0])) for eqn in joins]
        lanes = [(all_lanes.each(work.by_lane(var)[0]), owners.lane_of[var]) for var in pieces]
        return results + [lax.index_in_dim(value, lane, keepdims=False) for value, lane in lanes]

    operands = list(dict.fromkeys(needed))
    eqns, results, consts = emit(run, operands, lane_0[-1])
    replaced = [*pools.values(), *(eqn.outvars[0] for eqn in joins), *pieces]
    names: dict[ir.Var, ir.Atom] = dict(zip(replaced, results, strict=True))
    earlier_eqns, later_eqns, _ = split_at(jaxpr.eqns, work.lane_of.keys() | {id(eqn) for eqn in joins})
    late = {var for eqn in later_eqns for var in eqn.outvars}
    if late.intersection(operands) or any(var in pools for eqn in later_eqns for var in ir.variables(eqn.invars)):
        raise Different("no order of the equations reads every row before it is written")
    order = [*earlier_eqns, *eqns, *(renamed(eqn, names) for eqn in later_eqns)]
    outvars = [rename(atom, names) for atom in jaxpr.outvars]
    return graph.with_program(rewriting.with_eqns(graph.program, order, outvars, consts))


def _results(graph: Graph, work: SameWork) -> tuple[list[ir.JaxprEqn], list[ir.Var]]:
    """Return results that other equations read: joins of all lanes, and single variables."""
    variables = {var for eqn in graph.program.jaxpr.eqns if id(eqn) in work.lane_of for var in eqn.outvars}
    results = variables - work.owners.accesses.versions.keys()
    joins: list[ir.JaxprEqn] = []
    pieces = dict.fromkeys(var for var in ir.variables(graph.program.jaxpr.outvars) if var in results)
    for eqn in graph.program.jaxpr.eqns:
        operands = [var for var in ir.variables(eqn.invars) if var in results and id(eqn) not in work.lane_of]
        is_join = eqn.primitive.name in ("stack", "concatenate") and len(operands) == len(eqn.invars)
        if is_join and operands == work.by_lane(operands[0]):
            joins.append(eqn)
        else:
            pieces.update(dict.fromkeys(operands))
    return joins, list(pieces)


def _joined(eqn: ir.JaxprEqn, value: jax.Array) -> jax.Array:
    axis = eqn.params["axis" if eqn.primitive.name == "stack" else "dimension"]
    return lax.reshape(jnp.moveaxis(value, 0, axis), ir.shape_of(eqn.outvars[0]))


class BatchedWork:
    """Lane 0's equations, run for all lanes.

    An out-of-range row index never reaches another lane's row: a read is filled (NaN; the smallest integer), a write is
    dropped, and nothing wraps.

    Attributes:
        arrays: variable of no lane -> array; first version of a pool -> current version; other lanes' inputs.
        batched: variable of lane 0 -> values of all lanes, [lanes, ...].
    """

    def __init__(self, work: SameWork, arrays: dict[ir.Var, jax.Array]) -> None:
        self.work, self.arrays, self.lanes = work, arrays, len(work.lanes)
        self.batched = {var: self._input(var) for var in work.inputs()}
        for box, eqns in groupby(work.lanes[0].values(), key=work.box):
            if box is None:
                self._run(list(eqns))
                continue
            for eqn in eqns:
                self._access(eqn, box)

    def each(self, atom: ir.Atom) -> jax.Array:
        """Return a value of lane 0 for all lanes, [lanes, ...]."""
        if not isinstance(atom, ir.Literal) and atom in self.batched:
            return self.batched[atom]
        value = jnp.asarray(atom.val, ir.dtype_of(atom)) if isinstance(atom, ir.Literal) else self.arrays[atom]
        return jnp.broadcast_to(value[None], (self.lanes, *value.shape))

    def _input(self, var: ir.Var) -> jax.Array:
        entry, arrays = self.work.owners.entry(var), [self.arrays[source] for source in self.work.sources(var)]
        if entry is None:
            return lax.concatenate([array[None] for array in arrays], 0)
        return lax.reshape(jnp.moveaxis(arrays[0], entry[1], 0), (self.lanes, *ir.shape_of(var)))

    def _run(self, eqns: Sequence[ir.JaxprEqn]) -> None:
        results = dict.fromkeys(var for eqn in eqns for var in eqn.outvars if not isinstance(var, ir.DropVar))
        operands = dict.fromkeys(var for eqn in eqns for var in ir.variables(eqn.invars) if var not in results)
        axes = [0 if var in self.batched else None for var in operands]
        run = jax.vmap(rewriting.run_eqns(eqns, list(operands), list(results)), in_axes=axes, axis_size=self.lanes)
        values = [(self.batched if var in self.batched else self.arrays)[var] for var in operands]
        self.batched.update(zip(results, run(*values), strict=True))

    def _rows(self, box: Box) -> jax.Array:
        return lax.iota(jnp.int32, self.lanes) if box.map is None else self.arrays[box.map]

    def _access(self, eqn: ir.JaxprEqn, box: Box) -> None:
        """Read or write the rows of all lanes at once."""
        (version, _), rows = self.work.first_version(eqn.invars[0]), self._rows(box)
        starts = cast(Sequence[int], box.starts)
        pool = self.arrays[version]
        partial = [dim for dim in range(pool.ndim) if box.sizes[dim] < pool.shape[dim] and starts[dim] != 0]
        dims, window = tuple(sorted({box.axis, *partial})), tuple(range(1, pool.ndim + 1))
        columns = [rows if dim == box.axis else jnp.full_like(rows, starts[dim]) for dim in dims]
        index = lax.concatenate([column[:, None] for column in columns], 1)
        if eqn.primitive.name not in WRITES:
            numbers = lax.GatherDimensionNumbers(window, (), dims)
            values = lax.gather(pool, index, numbers, box.sizes, mode="fill")
            self.batched[eqn.outvars[0]] = lax.reshape(values, (self.lanes, *ir.shape_of(eqn.outvars[0])))
            return
        (update,) = eqn.invars[updates_of(eqn)]
        values = lax.reshape(self.each(update), (self.lanes, *box.sizes))
        kind = eqn.primitive.name.replace("dynamic_update_slice", "scatter").replace("-", "_")
        scatter, numbers = getattr(lax, kind), lax.ScatterDimensionNumbers(window, (), dims)
        self.arrays[version] = scatter(pool, index, values, numbers, mode="drop", unique_indices=True)


def split_at(
    eqns: Sequence[ir.JaxprEqn], moved: Container[int]
) -> tuple[list[ir.JaxprEqn], list[ir.JaxprEqn], set[ir.Var]]:
    """Split a program at equations that move together: earlier equations, later equations, operands.

    Later equations need results of moved ones, have effects after theirs, or write arrays that they read. The operands
    are of the moved and later equations.

    Args:
        moved: ids of equations.
    """
    earlier_eqns, later_eqns = list[ir.JaxprEqn](), list[ir.JaxprEqn]()
    results, operands_after, has_effects = set[ir.Var](), set[ir.Var](), False
    for eqn in eqns:
        operands = ir.variables(eqn.invars)
        overwrites = eqn.primitive.name in WRITES and not operands_after.isdisjoint(operands[:1])
        if id(eqn) in moved or not results.isdisjoint(operands) or overwrites or (eqn.effects and has_effects):
            results.update(eqn.outvars)
            operands_after.update(operands)
            has_effects |= bool(eqn.effects)
            if id(eqn) not in moved:
                later_eqns.append(eqn)
        else:
            earlier_eqns.append(eqn)
    return earlier_eqns, later_eqns, operands_after
