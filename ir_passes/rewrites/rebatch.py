"""Batch the work of a loop over sequences: compute it for all of them at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import prod
from typing import Any, ClassVar

from jax import lax
from jax import numpy as jnp

from ir_passes.jaxpr import ir
from ir_passes.rewrites.batched_work import BatchedWork, Join, first_version
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.lane_order import check_batchable, written_pools
from ir_passes.rewrites.lane_owners import NAMING, LaneOwners
from ir_passes.rewrites.pool_access import PoolAccesses, pool_names
from ir_passes.rewrites.same_work import Different, SameWork, operands_of_access, same_work
from ir_passes.rewrites.schedule import schedule
from ir_passes.rewrites.slot_entries import SlotIndex, shape

MAX_ALIGNMENTS = 3
"""Rounds in which equations that only some lanes have are set aside."""


@dataclass(frozen=True)
class Rebatch:
    """The pass that replaces the same equations on every lane by one computation with the lanes in front.

    The reads of all lanes' rows become one gather by the slot map, the computations are batched by `jax.vmap`, and the
    writes become one scatter that drops and does not wrap.

    Precondition: entries of a slot map are distinct on active lanes; without a map, row i is lane i's. Postcondition:
    no level of the step has the same work on every lane. Never changes: the order of accesses to any one row, effects
    and their order, what is computed for a lane. Lanes that differ in one equation, conds, whiles, random numbers,
    opaque and declared operations, and pools that are also accessed in between are left alone, with the reason in the
    report. Bit-identical where no dot changes its number of rows, within float32 rounding elsewhere.
    """

    name: ClassVar[str] = "rebatch"

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Rewrite the graph (see `Pass.run`)."""
        before = graph
        reasons: list[str] = []
        while graph.bound.lanes > 1:
            reasons = []
            after = _first_rewritten(graph, say, reasons)
            if after is None:
                break
            graph = after
        for reason in dict.fromkeys(reasons):
            say(f"left alone: {reason}")
        return graph if graph is before else graph.with_program(ir.without_dead(graph.program))


def _first_rewritten(graph: Graph, say: Say, reasons: list[str]) -> Graph | None:
    """The graph with the first level of work re-batched; None if there is none."""
    owners = _aligned(graph)
    first: dict[ir.Var, ir.Var] = {}
    for eqn in graph.program.jaxpr.eqns:
        if eqn.outvars and all(var in owners.roots for var in eqn.outvars) and len(eqn.outvars) > 1:
            first.update((var, eqn.outvars[0]) for var in eqn.outvars)
    for level in sorted(owners.eqns):
        lanes = [owners.eqns[level].get(lane, []) for lane in range(graph.bound.lanes)]
        if not all(any(_is_work(eqn, owners) for eqn in eqns) for eqns in lanes):
            continue
        try:
            work = same_work(owners, lanes, first)
            first = work.first
            check_batchable(work)
            pools = written_pools(owners, work)
            after = _rewritten(graph, owners, work, pools)
        except Different as difference:
            reasons.append(str(difference))
            continue
        count = len(owners.eqns[level][0])
        named = f" of {pool_names(graph, (owners.accesses.versions[pool] for pool in pools))}" if pools else ""
        say(f"re-batched {graph.bound.lanes} lanes x {count} equations{named}")
        return after
    return None


def _aligned(graph: Graph) -> LaneOwners:
    """Owners under which every lane has as many equations, where that is possible.

    A sum or an array that collects results begins with an equation on lane 0 alone; it is counted with those that mix
    lanes, as the rest of the chain is.
    """
    accesses, mixing = PoolAccesses(graph), frozenset[int]()
    owners = LaneOwners(accesses)
    for _ in range(MAX_ALIGNMENTS):
        extra = {id(eqn) for lanes in owners.eqns.values() for eqn in _extra(lanes, graph.bound.lanes)}
        if not extra:
            break
        mixing |= extra
        owners = LaneOwners(accesses, mixing)
    return owners


def _extra(lanes: dict[int, list[ir.JaxprEqn]], count: int) -> Iterator[ir.JaxprEqn]:
    """Equations of some lanes that the lane with the fewest has no like of."""
    if len(lanes) != count or len({len(eqns) for eqns in lanes.values()}) == 1:
        return
    fewest = min(lanes.values(), key=len)
    kinds = [_kind(eqn) for eqn in fewest]
    for eqns in lanes.values():
        if len(eqns) == len(fewest):
            continue
        blocks = SequenceMatcher(None, [_kind(eqn) for eqn in eqns], kinds, autojunk=False).get_matching_blocks()
        matched = {place for block in blocks for place in range(block.a, block.a + block.size)}
        yield from (eqn for place, eqn in enumerate(eqns) if place not in matched)


def _kind(eqn: ir.JaxprEqn) -> tuple[str, ...]:
    return (eqn.primitive.name, *ir.types(eqn.invars), *ir.types(eqn.outvars))


def _is_work(eqn: ir.JaxprEqn, owners: LaneOwners) -> bool:
    """Whether an equation does more than to name a part or to compute one index."""
    index = all(prod(shape(var)) == 1 and not jnp.issubdtype(ir.dtype_of(var), jnp.inexact) for var in eqn.outvars)
    return id(eqn) in owners.own or not (eqn.primitive.name in NAMING or index)


def _rewritten(graph: Graph, owners: LaneOwners, work: SameWork, pools: dict[ir.Var, ir.Var]) -> Graph:
    """The graph with the work done for all lanes at once."""
    jaxpr = graph.program.jaxpr
    inside = work.equations
    joins, pieces = _wanted(jaxpr, owners, work, inside)
    outside = _outside(owners, work, pools)
    stacked = frozenset(var for var in outside if var in owners.lane_of and var not in owners.roots)
    splits = tuple(var for var in outside if var in owners.roots)
    whole = [owners.roots[var].source if var in owners.roots else var for var in outside]
    inputs = list(dict.fromkeys(whole))
    batched = BatchedWork(owners, work, tuple(inputs), stacked, splits, pools, joins, tuple(pieces))
    before, operands, consts = _stacked(inputs, stacked, work, graph.bound.lanes)
    eqns, results, more = ir.emit(batched, operands, work.lanes[0][-1])
    last, joined = len(pools), len(pools) + len(joins)
    names: dict[ir.Var, ir.Atom] = dict(zip(pools.values(), results[:last], strict=True))
    names.update((join.eqn.outvars[0], result) for join, result in zip(joins, results[last:joined], strict=True))
    names.update((pieces[key], result) for key, result in zip(pieces, results[joined:], strict=True))
    dropped = inside | {id(join.eqn) for join in joins}
    groups: list[list[ir.JaxprEqn]] = []
    placed = False
    for eqn in jaxpr.eqns:
        if id(eqn) in inside and not placed:
            groups += [[one] for one in (*before, *eqns)]
            placed = True
        if id(eqn) not in dropped:
            groups.append([ir.renamed(eqn, names)])
    order = schedule(groups, set(owners.accesses.versions))
    if order is None:
        raise Different("no order of the equations reads every row before it is written")
    outvars = [ir.rename(atom, names) for atom in jaxpr.outvars]
    return graph.with_program(ir.with_eqns(graph.program, order, outvars, consts | more))


def _wanted(
    jaxpr: ir.Jaxpr, owners: LaneOwners, work: SameWork, inside: frozenset[int]
) -> tuple[tuple[Join, ...], dict[tuple[ir.Var, int], ir.Var]]:
    """Return the results that other equations read: those of all lanes joined in order, and single lanes' parts."""
    made = {var for eqns in work.lanes for eqn in eqns if id(eqn) in inside for var in eqn.outvars}
    made -= set(owners.accesses.versions)
    joins: list[Join] = []
    pieces: dict[tuple[ir.Var, int], ir.Var] = {}
    for eqn in jaxpr.eqns:
        if id(eqn) in inside:
            continue
        operands = [var for var in ir.variables(eqn.invars) if var in made]
        if _joins(eqn, operands, owners, work):
            axis = eqn.params["axis" if eqn.primitive.name == "stack" else "dimension"]
            joins.append(Join(eqn, work.first[operands[0]], axis))
        else:
            pieces.update(((work.first[var], owners.lane_of[var]), var) for var in operands)
    last = [var for var in ir.variables(jaxpr.outvars) if var in made]
    pieces.update(((work.first[var], owners.lane_of[var]), var) for var in last)
    return tuple(joins), pieces


def _joins(eqn: ir.JaxprEqn, operands: Sequence[ir.Var], owners: LaneOwners, work: SameWork) -> bool:
    in_order = [owners.lane_of[var] for var in operands] == list(range(owners.graph.bound.lanes))
    same = len({work.first[var] for var in operands}) == 1
    return eqn.primitive.name in ("stack", "concatenate") and len(operands) == len(eqn.invars) and in_order and same


def _outside(owners: LaneOwners, work: SameWork, pools: dict[ir.Var, ir.Var]) -> list[ir.Var]:
    """Return the variables that lane 0's equations read from outside, slot maps and earlier pools included."""
    jaxpr = owners.graph.program.jaxpr
    found = dict.fromkeys([*pools, *(jaxpr.invars[i] for i in owners.accesses.facts.sizes)])
    eqns = [*work.named, *work.lanes[0]]
    made = {var for eqn in eqns for var in eqn.outvars}
    for eqn in eqns:
        if isinstance(owners.accesses.facts.of(eqn.outvars[0]), SlotIndex):
            continue
        operands = ir.variables(eqn.invars)
        if id(eqn) in owners.own:
            needed = [eqn.invars[place] for place in operands_of_access(eqn, owners.own[id(eqn)])]
            operands = [first_version(owners, work, eqn), *ir.variables(needed)]
        found.update(dict.fromkeys(var for var in operands if var not in made))
    return list(found)


def _stacked(
    inputs: Sequence[ir.Var], stacked: frozenset[ir.Var], work: SameWork, lanes: int
) -> tuple[list[ir.JaxprEqn], list[ir.Atom], dict[ir.Var, Any]]:
    """Equations that put lanes' values of earlier work together, and the operands of the batched work."""
    eqns: list[ir.JaxprEqn] = []
    operands: list[ir.Atom] = []
    consts: dict[ir.Var, Any] = {}
    for var in inputs:
        if var not in stacked:
            operands.append(var)
            continue
        if len(work.alike.get(var, [])) != lanes:
            raise Different("what lanes take from their own earlier work does not correspond")
        new, (result,), more = ir.emit(
            lambda *parts: lax.concatenate([part[None] for part in parts], 0), work.alike[var]
        )
        eqns += new
        operands.append(result)
        consts |= more
    return eqns, operands, consts
