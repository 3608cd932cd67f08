"""Scans over layers that carry their pools.

XLA updates a carry in place, but writes stacked results of a scan outside the bytes of its `xs`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.contract.contract import Pool
from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.primitives import WRITES
from ir_passes.jaxpr.rewriting import emit, rename, renamed
from ir_passes.rewrites.graph import Graph

StackedPool = tuple[int, int]
"""`xs` operand of a scan with a pool -> `ys` result with its successor, by number."""


def with_carried_layers(graph: Graph) -> tuple[Graph, int]:
    """Return the graph with stacked pools as carries of scans, and the number of pools."""
    stacked = _stacked_pools(graph)
    if not stacked:
        return graph, 0
    eqns: list[ir.JaxprEqn] = []
    names: dict[ir.Var, ir.Atom] = {}
    consts: dict[ir.Var, Any] = {}
    for eqn in graph.program.jaxpr.eqns:
        eqn = renamed(eqn, names)
        if not stacked.get(eqn.outvars[0] if eqn.outvars else None):
            eqns.append(eqn)
            continue
        new, results, new_consts = emit(_carried_scan(eqn, stacked[eqn.outvars[0]]), eqn.invars, eqn)
        eqns += new
        consts |= new_consts
        names.update(zip(eqn.outvars, results, strict=True))
    outvars = [rename(atom, names) for atom in graph.program.jaxpr.outvars]
    program = rewriting.with_eqns(graph.program, eqns, outvars, consts)
    return graph.with_program(program), sum(map(len, stacked.values()))


def _stacked_pools(graph: Graph) -> dict[Any, list[StackedPool]]:
    """Return stacked pools by the first result of their scan."""
    jaxpr = graph.program.jaxpr
    made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    stacked: dict[Any, list[StackedPool]] = {}
    for pool, successor in graph.bound.successors.items():
        entry, version = graph.bound.inputs[pool].entry, jaxpr.outvars[successor]
        while isinstance(entry, Pool) and not isinstance(version, ir.Literal) and version in made_by:
            eqn = made_by[version]
            if eqn.primitive.name in WRITES:
                version = eqn.invars[0]
                continue
            if eqn.primitive.name != "scan" or eqn.effects:
                break
            result, (consts, carry) = eqn.outvars.index(version), ir.scan_counts(eqn)
            if result < carry:
                version = eqn.invars[consts + result]
                continue
            operand = _source(eqn, result, consts + carry)
            if operand is None or entry.axis == 0:  # lanes along axis 0: a scan over lanes
                break
            version = eqn.invars[operand]
            stacked.setdefault(eqn.outvars[0], []).append((operand, result))
    return stacked


def _source(eqn: ir.JaxprEqn, result: int, first: int) -> int | None:
    """Return the `xs` operand, from `first` on, that the body updates to a stacked result."""
    body = eqn.params["jaxpr"].jaxpr
    made_by = {var: inner for inner in body.eqns for var in inner.outvars}
    atom = body.outvars[result]
    while not isinstance(atom, ir.Literal) and atom in made_by and made_by[atom].primitive.name in WRITES:
        atom = made_by[atom].invars[0]
    operands = range(first, len(eqn.invars))
    by_write = [operand for operand in operands if body.invars[operand] is atom]
    if by_write:
        return by_write[0]
    carry = ir.scan_counts(eqn)[1]
    kind = ir.types([eqn.outvars[result]])
    sources = [operand for operand in operands if ir.types([eqn.invars[operand]]) == kind]
    results = [other for other in range(carry, len(eqn.outvars)) if ir.types([eqn.outvars[other]]) == kind]
    return sources[0] if len(sources) == len(results) == 1 else None


def _carried_scan(eqn: ir.JaxprEqn, stacked: Sequence[StackedPool]) -> Callable[..., list[jax.Array]]:
    """Return a scan as a function that reads and writes one layer per iteration."""
    params = eqn.params
    count, carries = ir.scan_counts(eqn)
    body, first = ir.as_function(params["jaxpr"]), count + carries
    place_of = {operand: place for place, (operand, _) in enumerate(stacked)}
    successors = [result for _, result in stacked]
    other_results = [result for result in range(carries, len(eqn.outvars)) if result not in successors]

    def scan(*operands: jax.Array) -> list[jax.Array]:

        def run(state: Any, slices: Any) -> Any:
            carry, pools = state
            layer, rest = slices[0], iter(slices[1])
            xs = [
                _layer(pools[place_of[operand]], layer) if operand in place_of else next(rest)
                for operand in range(first, len(operands))
            ]
            results = body(*operands[:count], *carry, *xs)
            updated = [
                _with_layer(pool, results[successor], layer) for pool, successor in zip(pools, successors, strict=True)
            ]
            return (tuple(results[:carries]), tuple(updated)), tuple(results[result] for result in other_results)

        pools = tuple(operands[operand] for operand, _ in stacked)
        sliced = tuple(operands[operand] for operand in range(first, len(operands)) if operand not in place_of)
        layers = jnp.arange(params["length"], dtype=jnp.int32)
        (carry, pools), ys = lax.scan(
            run,
            (tuple(operands[count:first]), pools),
            (layers, sliced),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        by_result = dict(zip(successors, pools, strict=True)) | dict(zip(other_results, ys, strict=True))
        return [*carry, *(by_result[result] for result in range(carries, len(eqn.outvars)))]

    return scan


# With `lax.dynamic_index_in_dim` and `dynamic_update_index_in_dim` XLA copies the pool: they add reshapes.
def _layer(pool: jax.Array, layer: jax.Array) -> jax.Array:
    starts = [layer, *[jnp.zeros((), layer.dtype)] * (pool.ndim - 1)]
    part = lax.dynamic_slice(pool, starts, (1, *pool.shape[1:]), allow_negative_indices=False)
    return lax.squeeze(part, (0,))


def _with_layer(pool: jax.Array, rows: jax.Array, layer: jax.Array) -> jax.Array:
    starts = [layer, *[jnp.zeros((), layer.dtype)] * (pool.ndim - 1)]
    return lax.dynamic_update_slice(pool, rows[None], starts, allow_negative_indices=False)
