"""Carry a pool through a scan instead of slicing it apart and stacking it up again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.contract.contract import Pool
from ir_passes.jaxpr import ir
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.pool_access import WRITES, pool_names


@dataclass(frozen=True)
class CarryPools:
    """The pass that makes a carry of a pool which a scan takes apart as `xs`, and whose successor it stacks as `ys`.

    XLA cannot stack `ys` up in the bytes of `xs`, so the scan writes a second pool and copies it. A carry is updated in
    place.

    Precondition: the pool is read by that scan alone. Postcondition: no pool that a scan takes in and gives back is
    among its `xs`. Never changes: the order of iterations, what each reads, other operands. A scan over rows (its axis
    is the pool's row axis) and one with effects are left alone. Results are bit-identical.
    """

    name: ClassVar[str] = "carry-pools"

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Rewrite the graph (see `Pass.run`)."""
        found = _scanned_pools(graph, say)
        if not found:
            return graph
        names: dict[ir.Var, ir.Atom] = {}
        consts: dict[ir.Var, Any] = {}
        eqns: list[ir.JaxprEqn] = []
        for eqn in graph.program.jaxpr.eqns:
            if id(eqn) not in found:
                eqns.append(ir.renamed(eqn, names))
                continue
            new, results, more = ir.emit(_Carrying(eqn, tuple(found[id(eqn)])), eqn.invars, eqn)
            eqns += [ir.renamed(one, names) for one in new]
            consts |= more
            names.update(zip(eqn.outvars, results, strict=True))
        pools = sorted({one.pool for pairs in found.values() for one in pairs})
        count = sum(map(len, found.values()))
        say(f"{pool_names(graph, pools)}: {count} carried through {len(found)} scans instead of sliced and stacked")
        outvars = [ir.rename(atom, names) for atom in graph.program.jaxpr.outvars]
        return graph.with_program(ir.with_eqns(graph.program, eqns, outvars, consts))


@dataclass(frozen=True)
class _Pair:
    """A pool that goes into a scan as operand `xs` and comes out as result `ys`."""

    pool: int
    xs: int
    ys: int


def _scanned_pools(graph: Graph, say: Say) -> dict[int, list[_Pair]]:
    """Pools that scans take in and give back, by scan; from each pool's successor backwards."""
    jaxpr = graph.program.jaxpr
    made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    uses: dict[ir.Var, int] = {}
    for atom in [*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars)]:
        if not isinstance(atom, ir.Literal):
            uses[atom] = uses.get(atom, 0) + 1
    found: dict[int, list[_Pair]] = {}
    for pool, successor in graph.bound.successors.items():
        entry = graph.bound.inputs[pool].entry
        version = jaxpr.outvars[successor]
        while not isinstance(version, ir.Literal) and version in made_by and isinstance(entry, Pool):
            eqn = made_by[version]
            if eqn.primitive.name in WRITES:
                version = eqn.invars[0]
                continue
            if eqn.primitive.name != "scan":
                break
            result = eqn.outvars.index(version)
            consts, carry = ir.scan_counts(eqn)
            if result < carry:
                version = eqn.invars[consts + result]
                continue
            operand = _source(eqn, result, consts + carry)
            if operand is None:
                break
            version = eqn.invars[operand]
            reason = "it scans over its rows" if entry.axis == 0 else "the scan has effects" if eqn.effects else None
            if not isinstance(version, ir.Literal) and uses[version] > 1:
                reason = "it is read elsewhere too"
            if reason:
                say(f"left {graph.bound.inputs[pool].path} in the scan at {ir.source_of(eqn)}: {reason}")
                break
            found.setdefault(id(eqn), []).append(_Pair(pool, operand, result))
    return found


def _source(eqn: ir.JaxprEqn, result: int, first: int) -> int | None:
    """The `xs` operand whose successor is a `ys`: updated in the body, or the only one of its type."""
    body = eqn.params["jaxpr"].jaxpr
    made_by = {var: one for one in body.eqns for var in one.outvars}
    atom = body.outvars[result]
    while not isinstance(atom, ir.Literal) and atom in made_by and made_by[atom].primitive.name in WRITES:
        atom = made_by[atom].invars[0]
    sliced = range(first, len(eqn.invars))
    for operand in sliced:
        if body.invars[operand] is atom:
            return operand
    carry = ir.scan_counts(eqn)[1]
    kind = ir.types([eqn.outvars[result]])
    sources = [operand for operand in sliced if ir.types([eqn.invars[operand]]) == kind]
    results = [other for other in range(carry, len(eqn.outvars)) if ir.types([eqn.outvars[other]]) == kind]
    return sources[0] if len(sources) == len(results) == 1 else None


@dataclass(frozen=True)
class _Carrying:
    """A scan as a function of its operands, with pools as carries."""

    eqn: ir.JaxprEqn
    pairs: tuple[_Pair, ...]

    def __call__(self, *operands: jax.Array) -> list[jax.Array]:
        """Run the scan with its pools as carries, read and written at the index of the iteration."""
        params = self.eqn.params
        count, carries = ir.scan_counts(self.eqn)
        body = ir.as_function(params["jaxpr"])
        first = count + carries
        pooled = {pair.xs: place for place, pair in enumerate(self.pairs)}
        stacked = [result for result in range(carries, len(self.eqn.outvars)) if result not in self._results]

        def run(state: Any, slices: Any) -> Any:
            carry, pools = state
            layer, others = slices
            rest = iter(others)
            xs = [
                _layer(pools[pooled[operand]], layer) if operand in pooled else next(rest)
                for operand in range(first, len(operands))
            ]
            results = body(*operands[:count], *carry, *xs)
            updated = [_with_layer(pool, results[pair.ys], layer) for pool, pair in zip(pools, self.pairs, strict=True)]
            return (tuple(results[:carries]), tuple(updated)), tuple(results[result] for result in stacked)

        pools = tuple(operands[pair.xs] for pair in self.pairs)
        others = tuple(operands[operand] for operand in range(first, len(operands)) if operand not in pooled)
        layers = jnp.arange(params["length"], dtype=jnp.int32)
        (carry, pools), ys = lax.scan(
            run,
            (tuple(operands[count:first]), pools),
            (layers, others),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        given = dict(zip(self._results, pools, strict=True)) | dict(zip(stacked, ys, strict=True))
        return [*carry, *(given[result] for result in range(carries, len(self.eqn.outvars)))]

    @property
    def _results(self) -> Sequence[int]:
        return [pair.ys for pair in self.pairs]


def _layer(pool: jax.Array, layer: jax.Array) -> jax.Array:
    starts = [layer, *[jnp.zeros((), layer.dtype)] * (pool.ndim - 1)]
    part = lax.dynamic_slice(pool, starts, (1, *pool.shape[1:]), allow_negative_indices=False)
    return lax.squeeze(part, (0,))


def _with_layer(pool: jax.Array, rows: jax.Array, layer: jax.Array) -> jax.Array:
    starts = [layer, *[jnp.zeros((), layer.dtype)] * (pool.ndim - 1)]
    return lax.dynamic_update_slice(pool, rows[None], starts, allow_negative_indices=False)
