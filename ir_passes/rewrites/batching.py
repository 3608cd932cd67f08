"""Batching of loops over sequences: equal work of all lanes in one operation."""

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import Any, cast

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.contract.declared import CROSSING, declaration_of
from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.primitives import OPAQUE, WRITES
from ir_passes.jaxpr.rewriting import emit, rename, renamed
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.lane_owners import Box, LaneOwners
from ir_passes.rewrites.lane_work import Different, SameWork, updates_of


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
    owners = LaneOwners(graph)
    levels = defaultdict[int, SameWork](lambda: SameWork(owners))
    for level, eqn, lane in owners.work:
        levels[level].add(eqn, lane)
    for _, work in sorted(levels.items()):
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
        entries = (graph.bound.inputs[owners.versions[pool]].entry for pool in pools)
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
    lane_0 = list(work.lanes[0].values())
    boxes = [(eqn, box) for eqn in lane_0 if (box := work.box(eqn)) is not None]
    needed = [work.first_version(eqn.invars[0])[0] for eqn, _ in boxes]
    needed += [box.map for _, box in boxes if box.map is not None]
    needed += [var for eqn in lane_0 for var in work.operands(eqn) if var not in owners.lane_of]
    needed += [source for sources, _ in work.inputs().values() for source in sources]
    joins, pieces = _results(graph, work)

    def run(*values: jax.Array) -> list[jax.Array]:
        outputs: list[Any] = [(eqn.invars[0], eqn.params.get("axis", eqn.params.get("dimension"))) for eqn in joins]
        outputs += [(work.by_lane(var)[0], 0) for var in pieces]
        results, stacked = _run_lanes(work, dict(zip(operands, values, strict=True)), list(pools), outputs)
        results += [lax.reshape(value, ir.shape_of(eqn.outvars[0])) for eqn, value in zip(joins, stacked, strict=False)]
        lanes = zip(stacked[len(joins) :], (owners.lane_of[var] for var in pieces), strict=True)
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
    results = variables - work.owners.versions.keys()
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


def _run_lanes(
    work: SameWork, arrays: dict[ir.Var, jax.Array], pools: Sequence[ir.Var], outputs: Sequence[tuple[ir.Var, int]]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Run lane 0's equations for all lanes; return last versions of pools, and outputs.

    Args:
        arrays: variable of no lane -> array; first version of a pool -> pool; other lanes' inputs.
        pools: first versions.
        outputs: variables of lane 0, each with the axis of lanes in the result.
    """
    eqns = [(eqn, work.box(eqn)) for eqn in work.lanes[0].values()]
    maps = list(dict.fromkeys(box.map for _, box in eqns if box is not None))
    inputs = work.inputs()
    parts_of = [([arrays[source] for source in sources], axis) for sources, axis in inputs.values()]
    stacked = [jnp.stack(parts) if axis is None else parts[0] for parts, axis in parts_of]

    def lane(rows: list[jax.Array], values: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        row_of, env = dict(zip(maps, rows, strict=True)), dict(arrays)
        env.update((var, lax.reshape(value, ir.shape_of(var))) for var, value in zip(inputs, values, strict=True))
        for eqn, box in eqns:
            if box is None:
                operands = [None if isinstance(atom, ir.Literal) else env[atom] for atom in eqn.invars]
                env.update(zip(eqn.outvars, rewriting.eval_eqn(eqn, *operands), strict=True))
            else:
                _access(work, eqn, box, row_of[box.map], env)
        return [env[version] for version in pools], [env[var] for var, _ in outputs]

    axes = [axis or 0 for _, axis in inputs.values()], [axis for _, axis in outputs]
    rows = [_rows(len(work.lanes), None if slots is None else arrays[slots]) for slots in maps]
    return jax.vmap(lane, in_axes=(0, axes[0]), out_axes=(None, axes[1]))(rows, stacked)


def _rows(lanes: int, slots: jax.Array | None) -> jax.Array:
    return lax.iota(jnp.int32, lanes) if slots is None else slots


def _access(work: SameWork, eqn: ir.JaxprEqn, box: Box, row: jax.Array, env: dict[ir.Var, jax.Array]) -> None:
    """Read or write a lane's row, under `jax.vmap` the rows of all lanes at once.

    An out-of-range row index never reaches another lane's row: a read is filled (NaN; the smallest integer), a write is
    dropped, and nothing wraps.
    """
    (version, _), starts = work.first_version(eqn.invars[0]), cast(Sequence[int], box.starts)
    pool = env[version]
    partial = [dim for dim in range(pool.ndim) if box.sizes[dim] < pool.shape[dim] and starts[dim] != 0]
    dims, window = tuple(sorted({box.axis, *partial})), tuple(range(pool.ndim))
    columns = [row if dim == box.axis else jnp.full_like(row, starts[dim]) for dim in dims]
    index = lax.concatenate([column[None] for column in columns], 0)
    if eqn.primitive.name not in WRITES:
        part = lax.gather(pool, index, lax.GatherDimensionNumbers(window, (), dims), box.sizes, mode="fill")
        env[eqn.outvars[0]] = lax.reshape(part, ir.shape_of(eqn.outvars[0]))
        return
    kind = eqn.primitive.name.replace("dynamic_update_slice", "scatter").replace("-", "_")
    numbers = lax.ScatterDimensionNumbers(tuple(dim + 1 for dim in window), (), dims)

    def write_lanes(lanes: int, is_batched: Sequence[bool], pool: Any, index: Any, update: Any) -> tuple[Any, bool]:
        update = update if is_batched[2] else jnp.broadcast_to(update[None], (lanes, *update.shape))
        return getattr(lax, kind)(pool, index, update, numbers, mode="drop", unique_indices=True), False

    # `jax.vmap` copies an array for each lane that writes to it
    write = jax.custom_batching.custom_vmap(lambda pool, index, update: pool)
    write.def_vmap(write_lanes)
    (update,) = eqn.invars[updates_of(eqn)]
    value = jnp.asarray(update.val, ir.dtype_of(update)) if isinstance(update, ir.Literal) else env[update]
    env[version] = write(pool, index, lax.reshape(value, box.sizes))


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
