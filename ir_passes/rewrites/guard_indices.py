"""Guard pool indices, so that none reaches another lane's row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.contract.contract import BoundContract, Pool
from ir_passes.jaxpr import ir
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.negative_wrap import NegativeWrap
from ir_passes.rewrites.nested import Body, bodies, carried, with_bodies
from ir_passes.rewrites.pool_access import WRITES, window_of
from ir_passes.rewrites.row_access import Start, clamped, read_box, write_box
from ir_passes.rewrites.slot_entries import IndexFact, IndexFacts, facts_in, facts_of, shape


@dataclass(frozen=True)
class GuardIndices:
    """The pass that removes clamping, clipping and negative wrap, which move a bad row index onto a good row.

    A read of a row that the pool does not have then gives NaN (the smallest integer), a write of it is dropped, also in
    the bodies of scans, whiles and conds. Row indices that are constants in bounds stay.

    Precondition: none. Postcondition: every gather and scatter along the row axis of a pool fills or drops and does not
    wrap, and no dynamic_slice or dynamic_update_slice of unknown row is left. Never changes: what an index in bounds
    reads and writes, and indices along other axes, which stay in their row. Results of indices in bounds are
    bit-identical.
    """

    name: ClassVar[str] = "guard-indices"

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        """Rewrite the graph (see `Pass.run`)."""
        jaxpr = graph.program.jaxpr
        pools = {
            jaxpr.invars[i]: one.entry.axis for i, one in enumerate(graph.bound.inputs) if isinstance(one.entry, Pool)
        }
        guard = _Guard(graph.bound, pools, facts_of(graph))
        eqns = guard.guarded(jaxpr)
        if guard.refused:
            say(f"left alone {', '.join(guard.refused)}: rows and indices are batched together")
        if not guard.count:
            return graph
        say(f"guarded {guard.count} row indices of pools")
        return graph.with_program(ir.with_eqns(graph.program, eqns, jaxpr.outvars, {}))


@dataclass
class _Guard:
    """One run over one jaxpr.

    Attributes:
        bound: the contract of the step.
        pools: the row axis of every version of a pool.
        facts: known of the indices.
        refused: accesses that were left alone.
        count: accesses that were guarded.
    """

    bound: BoundContract
    pools: dict[ir.Var, int]
    facts: IndexFacts
    refused: list[str] = field(default_factory=list)
    count: int = 0

    def guarded(self, jaxpr: ir.Jaxpr) -> list[ir.JaxprEqn]:
        """The equations with every access guarded."""
        self.wrap = NegativeWrap(jaxpr, self.facts)
        return [one for eqn in jaxpr.eqns for one in self._equation(eqn)]

    def _equation(self, eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
        for operand, result in carried(eqn):
            axis = self._axis(eqn.invars[operand])
            if axis is not None:
                self.pools[eqn.outvars[result]] = axis
        name, axis = eqn.primitive.name, self._axis(eqn.invars[0]) if eqn.invars else None
        new: list[ir.JaxprEqn] | None = None
        if axis is not None and name in WRITES:
            self.pools[eqn.outvars[0]] = axis
        if axis is not None and name in ("dynamic_slice", "dynamic_update_slice"):
            new = self._box(eqn, axis)
        elif axis is not None and (name == "gather" or name in WRITES):
            new = self._indexed(eqn, axis)
        self.count += new is not None
        return [self._nested(eqn)] if new is None else new

    def _axis(self, atom: ir.Atom) -> int | None:
        return None if isinstance(atom, ir.Literal) else self.pools.get(atom)

    def _box(self, eqn: ir.JaxprEqn, axis: int) -> list[ir.JaxprEqn] | None:
        reads = eqn.primitive.name == "dynamic_slice"
        arrays = 1 if reads else 2
        starts, sizes = list(eqn.invars[arrays:]), shape(eqn.outvars[0] if reads else eqn.invars[1])
        rows = shape(eqn.invars[0])[axis]
        if _in_bounds(self.facts.of(starts[axis]), sizes[axis], rows):
            return None
        found = self.wrap.removed(starts[axis], None, rows)
        before, starts[axis] = found if found is not None else ([], starts[axis])
        known = [fact if isinstance(fact := self.facts.of(atom), int) else None for atom in starts]
        given = [atom for atom, start in zip(starts, known, strict=True) if start is None]

        def access(*operands: jax.Array) -> jax.Array:
            dynamic = iter(operands[arrays:])
            at: list[Start] = [next(dynamic) if start is None else start for start in known]
            if reads:
                return read_box(operands[0], axis, at, sizes)
            return write_box(operands[0], operands[1], axis, at)

        return [*before, *ir.emit_instead(eqn, access, [*eqn.invars[:arrays], *given])]

    def _indexed(self, eqn: ir.JaxprEqn, axis: int) -> list[ir.JaxprEqn] | None:
        """Return the equations of an access with its index along `axis` guarded; None if it stays as it is."""
        window, index = window_of(eqn), eqn.invars[1]
        if window is None:
            if axis not in eqn.params["dimension_numbers"].operand_batching_dims:
                self.refused.append(f"{eqn.primitive.name} at {ir.source_of(eqn)}")
            return None
        if axis not in window.indexed:
            return None
        column, whole, known = window.indexed.index(axis), shape(eqn.invars[0]), self.facts.columns(index)
        if _in_bounds(known[column], window.sizes[axis], whole[axis]):
            return None
        mode = eqn.params["mode"]
        found = self.wrap.removed(index, column if len(known) > 1 else None, whole[axis])
        if found is None and mode == lax.GatherScatterMode.FILL_OR_DROP:
            return None
        before, index = found if found is not None else ([], index)
        limits = [
            None if dim == axis or _in_bounds(fact, window.sizes[dim], whole[dim]) else (window.sizes[dim], whole[dim])
            for dim, fact in zip(window.indexed, known, strict=True)
        ]
        if mode == lax.GatherScatterMode.CLIP and any(limits):
            eqns, (index,), _ = ir.emit(lambda at: _clamped_columns(at, limits), [index], eqn)
            before = [*before, *eqns]
        operands = [eqn.invars[0], index, *eqn.invars[2:]]
        if eqn.primitive.name == "gather":
            return [*before, *ir.emit_instead(eqn, partial(_filling_gather, eqn.params), operands)]
        params = {**eqn.params, "mode": lax.GatherScatterMode.FILL_OR_DROP}
        return [*before, eqn.replace(invars=operands, params=params)]

    def _nested(self, eqn: ir.JaxprEqn) -> ir.JaxprEqn:
        changed: list[tuple[Body, ir.ClosedJaxpr]] = []
        for body in bodies(eqn):
            jaxpr = body.closed.jaxpr
            pools: dict[ir.Var, int] = {}
            for var, operand, sliced in zip(jaxpr.invars, body.operands, body.sliced, strict=True):
                axis = self._axis(eqn.invars[operand])
                if axis is not None and axis >= sliced:
                    pools[var] = axis - sliced
            if not pools:
                continue
            guard = _Guard(self.bound, pools, facts_in(body.closed, self.bound))
            eqns = guard.guarded(jaxpr)
            if guard.count:
                changed.append((body, ir.with_eqns(body.closed, eqns, jaxpr.outvars, {})))
            self.count += guard.count
            self.refused += guard.refused
        return with_bodies(eqn, changed) if changed else eqn


def _in_bounds(start: IndexFact | None, length: int, size: int) -> bool:
    return length == size or (isinstance(start, int) and 0 <= start <= size - length)


def _filling_gather(params: Mapping[str, Any], pool: jax.Array, index: jax.Array) -> jax.Array:
    return lax.gather(
        pool,
        index,
        params["dimension_numbers"],
        params["slice_sizes"],
        mode="fill",
        unique_indices=params["unique_indices"],
        indices_are_sorted=params["indices_are_sorted"],
    )


def _clamped_columns(index: jax.Array, limits: list[tuple[int, int] | None]) -> jax.Array:
    """Index vectors with the components clamped that have a length and a size."""
    columns = [lax.slice_in_dim(index, i, i + 1, axis=-1) for i in range(len(limits))]
    return lax.concatenate(
        [
            column if limit is None else jnp.asarray(clamped(column, *limit))
            for column, limit in zip(columns, limits, strict=True)
        ],
        index.ndim - 1,
    )
