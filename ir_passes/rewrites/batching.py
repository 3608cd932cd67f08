"""Batching of loops over sequences: equal work of all lanes in one operation."""

import heapq
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from graphlib import CycleError, TopologicalSorter
from math import prod

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.primitives import WRITES
from ir_passes.jaxpr.rewriting import emit, rename, renamed
from ir_passes.rewrites.batched_work import BatchedWork
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.lane_owners import SELECTING, LaneOwners
from ir_passes.rewrites.pool_access import PoolAccesses, pool_names
from ir_passes.rewrites.same_work import Different, SameWork, check_batchable, written_pools

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
    owners, lanes = _aligned(graph), range(graph.bound.lanes)
    splits = (eqn.outvars for eqn in graph.program.jaxpr.eqns if len(eqn.outvars) > 1)
    first = {var: parts[0] for parts in splits if all(part in owners.roots for part in parts) for var in parts}
    for level in sorted(owners.eqns):
        eqns = [owners.eqns[level].get(lane, []) for lane in lanes]
        if not all(any(_is_work(eqn, owners) for eqn in lane_eqns) for lane_eqns in eqns):
            continue
        try:
            work = SameWork(owners, eqns, first)
            first = work.first
            check_batchable(work)
            pools = written_pools(work)
            rewritten = _rewrite(graph, work, pools)
        except Different as difference:
            reasons.append(str(difference))
            continue
        of_pools = f" of {pool_names(graph, (owners.accesses.versions[pool] for pool in pools))}" if pools else ""
        say(f"re-batched {len(lanes)} lanes x {len(eqns[0])} equations{of_pools}")
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


def _rewrite(graph: Graph, work: SameWork, pools: dict[ir.Var, ir.Var]) -> Graph:
    """Replace the work of all lanes.

    Raises:
        Different: a row is written before a read.
    """
    jaxpr = graph.program.jaxpr
    inputs = _inputs(work, pools)
    joins, pieces = _results(graph, work)

    def run(*values: jax.Array) -> list[jax.Array]:
        arrays, batched, remaining = dict[ir.Var, jax.Array](), dict[ir.Var, jax.Array](), iter(values)
        for var, sources in inputs.items():
            if len(sources) == 1:
                arrays[var] = next(remaining)
            else:
                batched[var] = lax.concatenate([next(remaining)[None] for _ in sources], 0)
        batched_work = BatchedWork(work, arrays, batched)
        results = [batched_work.arrays[version] for version in pools]
        results += [_joined(eqn, batched_work.each(work.first[ir.variables(eqn.invars)[0]])) for eqn in joins]
        lane_of = work.owners.lane_of
        pairs = [(batched_work.each(work.first[var]), lane_of[var]) for var in pieces]
        return results + [lax.index_in_dim(value, lane, keepdims=False) for value, lane in pairs]

    eqns, results, consts = emit(run, [var for sources in inputs.values() for var in sources], work.lanes[0][-1])
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


def _inputs(work: SameWork, pools: dict[ir.Var, ir.Var]) -> dict[ir.Var, list[ir.Var]]:
    """Return lane 0's outside variables, each with one variable or one of each lane."""
    owners, accesses = work.owners, work.owners.accesses
    eqns = [*work.named, *work.lanes[0]]
    results = {var for eqn in eqns for var in eqn.outvars}
    read = [*pools, *(owners.graph.program.jaxpr.invars[i] for i in accesses.sizes)]
    read += [work.first_version(version) for eqn in eqns for version in accesses.versions_in(eqn)]
    read += [var for eqn in eqns for var in ir.variables(eqn.invars) if var not in accesses.versions]
    inputs: dict[ir.Var, list[ir.Var]] = {}
    for var in read:
        if var in owners.roots:
            inputs[owners.roots[var].source] = [owners.roots[var].source]
        elif var not in owners.lane_of:
            inputs[var] = [var]
        elif var not in results and len(work.alike.get(var, ())) == owners.graph.bound.lanes:
            inputs[var] = work.alike[var]
    return inputs


def _results(graph: Graph, work: SameWork) -> tuple[list[ir.JaxprEqn], list[ir.Var]]:
    """Return results that other equations read: joins of all lanes, and single variables."""
    owners = work.owners
    lane_results = {var for eqns in work.lanes for eqn in eqns for var in eqn.outvars} - owners.accesses.versions.keys()
    joins: list[ir.JaxprEqn] = []
    pieces = dict.fromkeys(var for var in ir.variables(graph.program.jaxpr.outvars) if var in lane_results)
    for eqn in graph.program.jaxpr.eqns:
        operands = [var for var in ir.variables(eqn.invars) if var in lane_results and id(eqn) not in work.ids]
        in_order = [owners.lane_of[var] for var in operands] == list(range(graph.bound.lanes))
        corresponds = len({work.first[var] for var in operands}) == 1 and len(operands) == len(eqn.invars)
        if eqn.primitive.name in ("stack", "concatenate") and in_order and corresponds:
            joins.append(eqn)
        else:
            pieces.update(dict.fromkeys(operands))
    return joins, list(pieces)


def _joined(eqn: ir.JaxprEqn, value: jax.Array) -> jax.Array:
    axis = eqn.params["axis" if eqn.primitive.name == "stack" else "dimension"]
    return lax.reshape(jnp.moveaxis(value, 0, axis), ir.shape_of(eqn.outvars[0]))


def schedule(eqns: Sequence[ir.JaxprEqn], versions: set[ir.Var]) -> list[ir.JaxprEqn] | None:
    """Order equations so that all readers of a version precede its update; None if impossible.

    Equations with effects keep their order.

    Args:
        eqns: in the preferred order.
        versions: known versions of pools; updates add theirs.
    """
    versions = set(versions)
    makers = {var: i for i, eqn in enumerate(eqns) for var in eqn.outvars}
    needed: list[set[int]] = [set() for _ in eqns]
    readers: dict[ir.Var, list[int]] = {}
    updates: list[tuple[ir.Var, int]] = []
    last_effect: int | None = None
    for i, eqn in enumerate(eqns):
        for var in ir.variables(eqn.invars):
            if var in makers:
                needed[i].add(makers[var])
            if var not in versions:
                continue
            if eqn.primitive.name in WRITES and eqn.invars[0] is var:
                updates.append((var, i))
                versions.add(eqn.outvars[0])
            else:
                readers.setdefault(var, []).append(i)
        if eqn.effects:
            needed[i].update(() if last_effect is None else (last_effect,))
            last_effect = i
    for var, i in updates:
        needed[i].update(readers.get(var, ()))
    sorter = TopologicalSorter({i: sources - {i} for i, sources in enumerate(needed)})
    try:
        sorter.prepare()
    except CycleError:
        return None
    ready, ordered = list[int](), list[ir.JaxprEqn]()
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        i = heapq.heappop(ready)
        ordered.append(eqns[i])
        sorter.done(i)
    return ordered
