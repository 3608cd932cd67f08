"""Read rows of a pool before other rows of it are written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.jaxpr import ir
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.pool_access import READS, Box, PoolAccesses, apart, pool_names
from ir_passes.rewrites.row_access import read_rows
from ir_passes.rewrites.schedule import schedule
from ir_passes.rewrites.slot_entries import SlotIndex, shape


@dataclass(frozen=True)
class HoistReads:
    """The pass that moves reads above writes of other rows, and merges reads of several rows into one gather.

    XLA does not know that the slots of a step are distinct. It must keep the order of lane 0's write and lane 1's read,
    and copies the pool to do so; and it keeps several readers of the old pool apart from the first write by copies,
    unless they are one.

    Precondition: entries of a slot map are distinct on active lanes. Postcondition: a read by an entry of a slot map
    stands above the writes of the same part of other entries' rows; reads that then share a version are one gather.
    Never changes: the order of reads and writes that may touch the same row, of effects, and any value but the null
    row's. Results are bit-identical.
    """

    name: ClassVar[str] = "hoist-reads"

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Rewrite the graph (see `Pass.run`)."""
        accesses = PoolAccesses(graph)
        reads = [
            (eqn, box)
            for eqn in graph.program.jaxpr.eqns
            if eqn.primitive.name in READS and (box := accesses.box(eqn)) is not None
        ]
        older = {id(eqn): version for eqn, box in reads if (version := _older(eqn, box, accesses)) is not None}
        families = _families(reads, older, accesses)
        if not older and not families:
            return graph
        after = _rewritten(graph, older, families, accesses)
        if after is None:
            say("left alone: no order of the equations reads every row before it is written")
            return graph
        hoisted = Counter(accesses.versions[version] for version in older.values())
        for pool, count in hoisted.items():
            say(f"hoisted {count} reads of {pool_names(graph, [pool])} above its writes")
        for family in families:
            pool = pool_names(graph, [accesses.versions[family.pool]])
            say(f"joined {len(family.reads)} reads of {pool} in one gather")
        return after


@dataclass(frozen=True)
class _Family:
    """Reads of the same box in different rows of one version, each with its row's lane."""

    pool: ir.Var
    box: Box
    map: int
    reads: tuple[tuple[ir.JaxprEqn, int], ...]


def _older(eqn: ir.JaxprEqn, box: Box, accesses: PoolAccesses) -> ir.Var | None:
    """The oldest version that has the same values in a box; None if it is the one that is read.

    A write that is apart by constants, as that of another layer, is not passed: the rows of one layer would be read
    from several versions, and XLA orders a write after the reads of its own layer alone, so it would copy the pool.
    """
    read = version = accesses.version(eqn)
    while version in accesses.makers:
        write = accesses.makers[version]
        other = accesses.box(write)
        if other is None or not accesses.other_rows(box, other) or _needs(eqn.invars[1:], write, accesses):
            break
        if apart(box, other):
            break
        version = accesses.version(write)
    return version if version is not read else None


def _needs(operands: Sequence[ir.Atom], eqn: ir.JaxprEqn, accesses: PoolAccesses) -> bool:
    """Whether operands are computed from the results of an equation."""
    made_by = accesses.made_by
    waiting, seen = ir.variables(operands), set[int]()
    while waiting:
        maker = made_by.get(waiting.pop())
        if maker is eqn:
            return True
        if maker is not None and id(maker) not in seen:
            seen.add(id(maker))
            waiting += ir.variables(maker.invars)
    return False


def _families(
    reads: Sequence[tuple[ir.JaxprEqn, Box]], older: dict[int, ir.Var], accesses: PoolAccesses
) -> list[_Family]:
    found: dict[Any, list[tuple[ir.JaxprEqn, Box, int]]] = {}
    for eqn, box in reads:
        version = older.get(id(eqn), accesses.version(eqn))
        known = all(isinstance(start, int) for dim, start in enumerate(box.starts) if dim != box.axis)
        if version in accesses.writers and isinstance(box.row, SlotIndex) and known:
            others = tuple(start for dim, start in enumerate(box.starts) if dim != box.axis)
            found.setdefault((version, box.row.map, others, box.sizes), []).append((eqn, box, box.row.lane))
    return [
        _Family(version, members[0][1], slots, tuple((eqn, lane) for eqn, _, lane in members))
        for (version, slots, _, _), members in found.items()
        if len({lane for _, _, lane in members}) > 1
    ]


def _rewritten(
    graph: Graph, older: dict[int, ir.Var], families: Sequence[_Family], accesses: PoolAccesses
) -> Graph | None:
    """Return the graph with one gather for each family of reads; None if nothing changes."""
    jaxpr = graph.program.jaxpr
    consts: dict[ir.Var, Any] = {}
    instead: dict[int, list[ir.JaxprEqn]] = {}
    names: dict[ir.Var, ir.Atom] = {}
    for family in families:
        slots = jaxpr.invars[family.map]
        eqns, results, more = ir.emit(_Read(family, graph.bound.lanes), [family.pool, slots], family.reads[0][0])
        consts |= more
        for (read, _), result in zip(family.reads, results, strict=True):
            instead[id(read)] = []
            names[read.outvars[0]] = result
        instead[id(family.reads[0][0])] = eqns
    groups: list[list[ir.JaxprEqn]] = []
    for eqn in jaxpr.eqns:
        if id(eqn) in older:
            eqn_now = eqn.replace(invars=[older[id(eqn)], *eqn.invars[1:]])
        else:
            eqn_now = eqn
        groups += [[one] for one in instead.get(id(eqn), [ir.renamed(eqn_now, names)])]
    order = schedule(groups, set(accesses.versions))
    if order is None:
        return None
    outvars = [ir.rename(atom, names) for atom in jaxpr.outvars]
    return graph.with_program(ir.with_eqns(graph.program, order, outvars, consts))


@dataclass(frozen=True)
class _Read:
    """One gather for a family of reads, with the part that each read had."""

    family: _Family
    lanes: int

    def __call__(self, pool: jax.Array, slots: jax.Array) -> list[jax.Array]:
        family, box = self.family, self.family.box
        lanes = sorted({lane for _, lane in family.reads})
        if lanes != list(range(self.lanes)):
            slots = jnp.concatenate([lax.slice(slots, (lane,), (lane + 1,)) for lane in lanes])
        starts = [start if isinstance(start, int) else slots for start in box.starts]
        rows = read_rows(pool, box.axis, starts, box.sizes, len(lanes))
        return [
            lax.reshape(lax.index_in_dim(rows, lanes.index(lane), keepdims=False), shape(read.outvars[0]))
            for read, lane in family.reads
        ]
