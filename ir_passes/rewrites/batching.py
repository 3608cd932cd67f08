"""Batching of loops over sequences: equal work of all lanes in one operation."""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise
from math import prod
from typing import cast

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.contract.declared import CROSSING, declaration_of
from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.primitives import OPAQUE, WRITES
from ir_passes.jaxpr.rewriting import emit, rename, renamed
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.lane_work import SELECTING, Different, LaneOwners, SameWork, updates_of, written_pools
from ir_passes.rewrites.pool_access import READS, Box, PoolAccesses, SlotIndex, pool_names

MAX_ALIGNMENTS = 3


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
    owners = _aligned(graph)
    for level in sorted(owners.eqns):
        eqns = [owners.eqns[level].get(lane, []) for lane in range(owners.lanes)]
        if not all(any(_is_work(eqn, owners) for eqn in lane_eqns) for lane_eqns in eqns):
            continue
        try:
            work = SameWork(owners, eqns)
            for eqn in eqns[0]:
                _check_batchable(eqn, owners.boxes.get(id(eqn)))
            pools = written_pools(work)
            rewritten = _rewrite(graph, work, pools)
        except Different as difference:
            reasons.append(str(difference))
            continue
        of_pools = f" of {pool_names(graph, (owners.accesses.versions[pool] for pool in pools))}" if pools else ""
        count = sum(owners.selected.isdisjoint(eqn.outvars) for eqn in eqns[0])
        say(f"re-batched {owners.lanes} lanes x {count} equations{of_pools}")
        return rewritten
    return None


def _aligned(graph: Graph) -> LaneOwners:
    """Return owners with the same number of equations on all lanes, if possible.

    A chain over lanes (a sum, an array of results) begins with an equation on lane 0 alone, so it counts as mixing
    lanes like the rest of the chain.
    """
    accesses = PoolAccesses(graph)
    owners = LaneOwners(accesses)
    for _ in range(MAX_ALIGNMENTS):
        levels = [list(lanes.values()) for lanes in owners.eqns.values() if len(lanes) == graph.bound.lanes]
        unmatched = {id(eqn) for lanes in levels for eqn in _unmatched(lanes)}
        if not unmatched:
            break
        owners = LaneOwners(accesses, owners.mixing | unmatched)
    return owners


def _unmatched(lanes: list[list[ir.JaxprEqn]]) -> Iterator[ir.JaxprEqn]:
    """Yield the equations that the lane with the fewest equations lacks."""
    fewest = [_kind(eqn) for eqn in min(lanes, key=len)]
    for eqns in lanes:
        if len(eqns) > len(fewest):
            blocks = SequenceMatcher(None, list(map(_kind, eqns)), fewest, autojunk=False).get_matching_blocks()
            matched = {i for block in blocks for i in range(block.a, block.a + block.size)}
            yield from (eqn for i, eqn in enumerate(eqns) if i not in matched)


def _kind(eqn: ir.JaxprEqn) -> tuple[str, ...]:
    return (eqn.primitive.name, *ir.types(eqn.invars), *ir.types(eqn.outvars))


def _is_work(eqn: ir.JaxprEqn, owners: LaneOwners) -> bool:
    """True for an access of a pool, or a computation other than of an index."""
    index = all(
        prod(ir.shape_of(var)) == 1 and not jnp.issubdtype(ir.dtype_of(var), jnp.inexact) for var in eqn.outvars
    )
    return id(eqn) in owners.boxes or not (eqn.primitive.name in SELECTING or index)


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
    jaxpr, lane_of = graph.program.jaxpr, work.owners.lane_of
    inputs = {var: work.entry(var) for var in work.alike if var not in work.made}
    arrays = [*pools, *(jaxpr.invars[i] for i in work.owners.accesses.sizes)]
    arrays += [entry.source for entry in inputs.values() if entry is not None]
    operands = (var for eqn in work.lanes[0] for var in ir.variables(eqn.invars))
    arrays = list(dict.fromkeys([*arrays, *(work.first_version(var) for var in operands if var not in lane_of)]))
    stacked = [other for var, entry in inputs.items() if entry is None for other in work.by_lane(var)]
    joins, pieces = _results(graph, work)
    lane_0 = {var: first for first in work.alike for var in work.by_lane(first)}

    def run(*values: jax.Array) -> list[jax.Array]:
        remaining, batched = iter(values), dict[ir.Var, jax.Array]()
        array_of = {var: next(remaining) for var in arrays}
        for var, entry in inputs.items():
            if entry is None:
                batched[var] = lax.concatenate([next(remaining)[None] for _ in work.lanes], 0)
            else:
                front = jnp.moveaxis(array_of[entry.source], entry.dim, 0)
                batched[var] = lax.reshape(front, (len(work.lanes), *ir.shape_of(var)))
        all_lanes = BatchedWork(work, array_of, batched)
        results = [all_lanes.arrays[version] for version in pools]
        results += [_joined(eqn, all_lanes.each(eqn.invars[0])) for eqn in joins]
        lanes = [(all_lanes.each(lane_0[var]), lane_of[var]) for var in pieces]
        return results + [lax.index_in_dim(value, lane, keepdims=False) for value, lane in lanes]

    eqns, results, consts = emit(run, [*arrays, *stacked], work.lanes[0][-1])
    replaced = [*pools.values(), *(eqn.outvars[0] for eqn in joins), *pieces]
    names: dict[ir.Var, ir.Atom] = dict(zip(replaced, results, strict=True))
    dropped = work.ids | {id(eqn) for eqn in joins}
    start = next(i for i, eqn in enumerate(jaxpr.eqns) if id(eqn) in work.ids)
    preferred = [*jaxpr.eqns[:start], *eqns, *jaxpr.eqns[start:]]
    remaining_eqns = [renamed(eqn, names) for eqn in preferred if id(eqn) not in dropped]
    order = schedule(remaining_eqns, set(work.owners.accesses.versions))
    if order is None:
        raise Different("no order of the equations reads every row before it is written")
    outvars = [rename(atom, names) for atom in jaxpr.outvars]
    return graph.with_program(rewriting.with_eqns(graph.program, order, outvars, consts))


def _results(graph: Graph, work: SameWork) -> tuple[list[ir.JaxprEqn], list[ir.Var]]:
    """Return results that other equations read: joins of all lanes, and single variables."""
    results = work.made - work.owners.accesses.versions.keys()
    joins: list[ir.JaxprEqn] = []
    pieces = dict.fromkeys(var for var in ir.variables(graph.program.jaxpr.outvars) if var in results)
    for eqn in graph.program.jaxpr.eqns:
        operands = [var for var in ir.variables(eqn.invars) if var in results and id(eqn) not in work.ids]
        is_join = eqn.primitive.name in ("stack", "concatenate") and len(operands) == len(eqn.invars)
        if is_join and operands[0] in work.alike and operands == work.by_lane(operands[0]):
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
        arrays: variable of no lane -> array; first version of a pool -> current version.
        batched: variable of lane 0 -> values of all lanes, [lanes, ...].
    """

    def __init__(self, work: SameWork, arrays: dict[ir.Var, jax.Array], batched: dict[ir.Var, jax.Array]) -> None:
        self.work, self.arrays, self.batched, self.lanes = work, arrays, batched, len(work.lanes)
        boxes = work.owners.boxes
        for boxed, eqns in groupby(work.lanes[0], key=lambda eqn: id(eqn) in boxes):
            if not boxed:
                self._run(list(eqns))
                continue
            for eqn in eqns:
                self._access(eqn, boxes[id(eqn)])

    def each(self, atom: ir.Atom) -> jax.Array:
        """Return a value of lane 0 for all lanes, [lanes, ...]."""
        if not isinstance(atom, ir.Literal) and atom in self.batched:
            return self.batched[atom]
        value = jnp.asarray(atom.val, ir.dtype_of(atom)) if isinstance(atom, ir.Literal) else self.arrays[atom]
        return jnp.broadcast_to(value[None], (self.lanes, *value.shape))

    def _run(self, eqns: Sequence[ir.JaxprEqn]) -> None:
        results = dict.fromkeys(var for eqn in eqns for var in eqn.outvars if not isinstance(var, ir.DropVar))
        operands = dict.fromkeys(var for eqn in eqns for var in ir.variables(eqn.invars) if var not in results)
        axes = [0 if var in self.batched else None for var in operands]
        run = jax.vmap(rewriting.run_eqns(eqns, list(operands), list(results)), in_axes=axes, axis_size=self.lanes)
        values = [(self.batched if var in self.batched else self.arrays)[var] for var in operands]
        self.batched.update(zip(results, run(*values), strict=True))

    def _rows(self, box: Box) -> jax.Array:
        if not isinstance(box.row, SlotIndex):
            return lax.iota(jnp.int32, self.lanes)
        return self.arrays[self.work.owners.accesses.graph.program.jaxpr.invars[box.row.map]]

    def _access(self, eqn: ir.JaxprEqn, box: Box) -> None:
        """Read or write the rows of all lanes at once."""
        version, rows, starts = self.work.first_version(eqn.invars[0]), self._rows(box), cast(Sequence[int], box.starts)
        pool = self.arrays[version]
        partial = [dim for dim in range(pool.ndim) if box.sizes[dim] < pool.shape[dim] and starts[dim] != 0]
        dims, window = tuple(sorted({box.axis, *partial})), tuple(range(1, pool.ndim + 1))
        columns = [rows if dim == box.axis else jnp.full_like(rows, starts[dim]) for dim in dims]
        index = lax.concatenate([column[:, None] for column in columns], 1)
        if eqn.primitive.name in READS:
            numbers = lax.GatherDimensionNumbers(window, (), dims)
            values = lax.gather(pool, index, numbers, box.sizes, mode="fill")
            self.batched[eqn.outvars[0]] = lax.reshape(values, (self.lanes, *ir.shape_of(eqn.outvars[0])))
            return
        (update,) = eqn.invars[updates_of(eqn)]
        values = lax.reshape(self.each(update), (self.lanes, *box.sizes))
        kind = eqn.primitive.name.replace("dynamic_update_slice", "scatter").replace("-", "_")
        scatter, numbers = getattr(lax, kind), lax.ScatterDimensionNumbers(window, (), dims)
        self.arrays[version] = scatter(pool, index, values, numbers, mode="drop", unique_indices=True)


def schedule(eqns: Sequence[ir.JaxprEqn], versions: set[ir.Var]) -> list[ir.JaxprEqn] | None:
    """Order equations so that all readers of a version precede its update; None if impossible.

    Equations with effects keep their order.

    Args:
        eqns: in the preferred order.
        versions: known versions of pools; updates add theirs.
    """
    versions, makers = set(versions), {var: i for i, eqn in enumerate(eqns) for var in eqn.outvars}
    needed = [{makers[var] for var in ir.variables(eqn.invars) if var in makers} for eqn in eqns]
    for first, second in pairwise(i for i, eqn in enumerate(eqns) if eqn.effects):
        needed[second].add(first)
    readers, updates = defaultdict[ir.Var, set[int]](set), list[tuple[ir.Var, int]]()
    for i, eqn in enumerate(eqns):
        for var in versions.intersection(ir.variables(eqn.invars)):
            if eqn.primitive.name in WRITES and eqn.invars[0] is var:
                updates.append((var, i))
                versions.add(eqn.outvars[0])
            else:
                readers[var].add(i)
    for var, i in updates:
        needed[i] |= readers[var]
    sorter = TopologicalSorter({i: sources - {i} for i, sources in enumerate(needed)})
    try:
        sorter.prepare()
    except CycleError:
        return None
    ready, ordered = list[int](), list[ir.JaxprEqn]()
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        ordered.append(eqns[ready[0]])
        sorter.done(heapq.heappop(ready))
    return ordered
