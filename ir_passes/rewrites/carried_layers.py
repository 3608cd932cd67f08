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
from ir_passes.jaxpr.bodies import maker
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
        pools, eqn = stacked.get(id(eqn)), renamed(eqn, names)
        if pools is None:
            eqns.append(eqn)
            continue
        new, results, new_consts = emit(_carried_scan(eqn, pools), eqn.invars, eqn)
        eqns += new
        consts |= new_consts
        names.update(zip(eqn.outvars, results, strict=True))
    outvars = [rename(atom, names) for atom in graph.program.jaxpr.outvars]
    program = rewriting.with_eqns(graph.program, eqns, outvars, consts)
    return graph.with_program(program), sum(map(len, stacked.values()))


def _stacked_pools(graph: Graph) -> dict[int, list[StackedPool]]:
    """Return stacked pools by the id of their scan."""
    jaxpr = graph.program.jaxpr
    made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    stacked: dict[int, list[StackedPool]] = {}
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
            operand = consts + result if result < carry else _source(eqn, result, consts + carry)
            if operand is None or (result >= carry and entry.axis == 0):  # lanes along axis 0: a scan over lanes
                break
            if result >= carry:
                stacked.setdefault(id(eqn), []).append((operand, result))
            version = eqn.invars[operand]
    return stacked


def _source(eqn: ir.JaxprEqn, result: int, first: int) -> int | None:
    """Return the `xs` operand, from `first` on, that the body updates to a stacked result."""
    body = eqn.params["jaxpr"].jaxpr
    atom = body.outvars[result]
    while (write := maker(body, atom)) is not None and write.primitive.name in WRITES:
        atom = write.invars[0]
    by_write = [operand for operand in range(first, len(eqn.invars)) if body.invars[operand] is atom]
    kind, carry = ir.types([eqn.outvars[result]]), ir.scan_counts(eqn)[1]
    sources = [operand for operand in range(first, len(eqn.invars)) if ir.types([eqn.invars[operand]]) == kind]
    is_only_one = len(sources) == ir.types(eqn.outvars[carry:]).count(*kind) == 1
    return by_write[0] if by_write else sources[0] if is_only_one else None


def _carried_scan(eqn: ir.JaxprEqn, stacked: Sequence[StackedPool]) -> Callable[..., list[jax.Array]]:
    """Return a scan as a function that reads and writes one layer per iteration."""
    params, (count, carries) = eqn.params, ir.scan_counts(eqn)
    body, first = ir.as_function(params["jaxpr"]), count + carries
    places = [(operand - first, result - carries) for operand, result in stacked]  # among xs and ys

    def scan(*operands: jax.Array) -> list[jax.Array]:
        xs = dict(enumerate(operands[first:]))
        pools = [xs.pop(source) for source, _ in places]

        def run(state: Any, inputs: Any) -> Any:
            (carry, pools), (layer, slices) = state, inputs
            rows = {source: _layer(pool, layer) for (source, _), pool in zip(places, pools, strict=True)}
            slices = slices | rows
            results = body(*operands[:count], *carry, *(slices[k] for k in sorted(slices)))
            ys = dict(enumerate(results[carries:]))
            updated = [_with_layer(pool, ys.pop(to), layer) for (_, to), pool in zip(places, pools, strict=True)]
            return (results[:carries], updated), ys

        layers = jnp.arange(params["length"], dtype=jnp.int32)
        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        (carry, pools), ys = lax.scan(run, (list(operands[count:first]), pools), (layers, xs), **options)
        ys |= {to: pool for (_, to), pool in zip(places, pools, strict=True)}
        return [*carry, *(ys[k] for k in sorted(ys))]

    return scan


# With `lax.dynamic_index_in_dim` and `dynamic_update_index_in_dim` XLA copies the pool: they add reshapes.
def _layer(pool: jax.Array, layer: jax.Array) -> jax.Array:
    part = lax.dynamic_slice(pool, _starts(pool, layer), (1, *pool.shape[1:]), allow_negative_indices=False)
    return lax.squeeze(part, (0,))


def _with_layer(pool: jax.Array, rows: jax.Array, layer: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(pool, rows[None], _starts(pool, layer), allow_negative_indices=False)


def _starts(pool: jax.Array, layer: jax.Array) -> list[jax.Array]:
    return [layer, *[jnp.zeros((), layer.dtype)] * (pool.ndim - 1)]
