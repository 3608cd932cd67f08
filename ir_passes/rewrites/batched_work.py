"""Batched equations: work that is the same on all lanes, as one computation over arrays with the lanes in front."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.jaxpr import ir
from ir_passes.rewrites.lane_owners import LaneOwners
from ir_passes.rewrites.pool_access import READS, Box
from ir_passes.rewrites.row_access import Start, indexed_dims, read_rows, row_index
from ir_passes.rewrites.same_work import SameWork
from ir_passes.rewrites.slot_entries import SlotIndex, shape

SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "dynamic_update_slice": lax.scatter,
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}


@dataclass(frozen=True)
class Join:
    """Results of all lanes in order, put together by one equation along one axis."""

    eqn: ir.JaxprEqn
    value: ir.Var
    axis: int


@dataclass(frozen=True)
class BatchedWork:
    """Lane 0's equations over all lanes, as a function of arrays from outside.

    Attributes:
        owners, work: the graph and what its lanes do.
        inputs: values from outside: no lane's, or lane 0's whose correspondents are stacked by the caller.
        stacked: those of `inputs` that come with the lanes in front.
        splits: lane 0's parts of arrays that one equation splits into all lanes'.
        pools: the first version of every pool that is written -> the last one.
        joins, pieces: results that other equations need: those put together, and one lane's part of a result.
    """

    owners: LaneOwners
    work: SameWork
    inputs: tuple[ir.Var, ...]
    stacked: frozenset[ir.Var]
    splits: tuple[ir.Var, ...]
    pools: dict[ir.Var, ir.Var]
    joins: tuple[Join, ...]
    pieces: tuple[tuple[ir.Var, int], ...]

    def __call__(self, *arrays: jax.Array) -> list[jax.Array]:
        """The last version of each pool, the joins and the pieces."""
        outside = dict(zip(self.inputs, arrays, strict=True))
        batched = {var: outside[var] for var in self.stacked}
        batched |= {var: self._entry(var, outside) for var in self.splits}
        current = {version: outside[version] for version in self.pools}
        pending: list[ir.JaxprEqn] = []
        for eqn in [*self.work.named, *self.work.lanes[0]]:
            if self._known(eqn, outside, batched):
                continue
            if id(eqn) not in self.owners.own:
                pending.append(eqn)
                continue
            self._run(pending, outside, batched)
            pending = []
            first = first_version(self.owners, self.work, eqn)
            if eqn.primitive.name in READS:
                pool = current[first] if first in current else outside[first]
                batched[eqn.outvars[0]] = self._read(eqn, pool, outside, batched)
            else:
                current[first] = self._write(eqn, current[first], outside, batched)
        self._run(pending, outside, batched)
        results = [current[version] for version in self.pools]
        results += [_joined(join, batched[join.value]) for join in self.joins]
        return results + [lax.index_in_dim(batched[var], lane, keepdims=False) for var, lane in self.pieces]

    @property
    def _lanes(self) -> int:
        return self.owners.graph.bound.lanes

    def _known(self, eqn: ir.JaxprEqn, outside: dict[ir.Var, Any], batched: dict[ir.Var, Any]) -> bool:
        """Enter a result that needs no computation: an entry of an array, or of a slot map."""
        var = eqn.outvars[0]
        facts = self.owners.accesses.facts
        mine = facts.of(var)
        if isinstance(mine, SlotIndex) and len(eqn.outvars) == 1:
            if [facts.of(other) for other in self.work.alike[var]] == [
                SlotIndex(mine.map, lane) for lane in range(self._lanes)
            ]:
                slots = outside[self.owners.graph.program.jaxpr.invars[mine.map]]
                batched[var] = lax.convert_element_type(
                    lax.reshape(slots, (self._lanes, *shape(var))), ir.dtype_of(var)
                )
                return True
        root = self.owners.roots.get(var)
        if root is None:
            return False
        array = outside[root.source]
        if eqn.primitive.name == "slice":
            starts, limits = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
            starts[root.dim], limits[root.dim] = 0, self._lanes
            array = lax.slice(array, starts, limits)
        elif eqn.primitive.name == "dynamic_slice":
            starts = [
                outside[atom] if isinstance(atom, ir.Var) else jnp.asarray(atom.val, ir.dtype_of(atom))
                for atom in eqn.invars[1:]
            ]
            starts[root.dim] = jnp.zeros((), starts[root.dim].dtype)
            sizes = list(shape(var))
            sizes[root.dim] = self._lanes
            array = lax.dynamic_slice(array, starts, sizes)
        batched[var] = lax.reshape(jnp.moveaxis(array, root.dim, 0), (self._lanes, *shape(var)))
        return True

    def _entry(self, var: ir.Var, outside: dict[ir.Var, Any]) -> jax.Array:
        """The parts of an array along a dimension, with the lanes in front."""
        root = self.owners.roots[var]
        front = jnp.moveaxis(outside[root.source], root.dim, 0)
        return lax.reshape(front, (self._lanes, *shape(var)))

    def _run(self, eqns: Sequence[ir.JaxprEqn], outside: dict[ir.Var, Any], batched: dict[ir.Var, Any]) -> None:
        """Run lane 0's equations for all lanes."""
        made = {var for eqn in eqns for var in eqn.outvars if not isinstance(var, ir.DropVar)}
        if not made:
            return
        needed = dict.fromkeys(var for eqn in eqns for var in ir.variables(eqn.invars) if var not in made)
        axes = [0 if var in batched else None for var in needed]
        values = [batched[var] if var in batched else outside[var] for var in needed]
        run = jax.vmap(ir.run_eqns(eqns, list(needed), list(made)), in_axes=axes, axis_size=self._lanes)
        batched.update(zip(made, run(*values), strict=True))

    def _rows(self, box: Box, outside: dict[ir.Var, Any]) -> jax.Array:
        if isinstance(box.row, SlotIndex):
            return outside[self.owners.graph.program.jaxpr.invars[box.row.map]]
        return lax.iota(jnp.int32, self._lanes)

    def _read(self, eqn: ir.JaxprEqn, pool: jax.Array, outside: dict[ir.Var, Any], batched: Any) -> jax.Array:
        box = self.owners.own[id(eqn)]
        rows, known = self._rows(box, outside), None not in box.starts
        if known or eqn.primitive.name == "dynamic_slice":
            atoms = box.starts if known else eqn.invars[1:]
            starts = self._starts(atoms, box, rows, outside, batched)
            values = read_rows(pool, box.axis, starts, box.sizes, self._lanes)
        else:
            index = batched[eqn.invars[1]]
            gather = ir.run_eqns([eqn], list(ir.variables(eqn.invars[:2])), eqn.outvars)
            values = jax.vmap(gather, in_axes=(None, 0))(pool, index)[0]
        return lax.reshape(values, (self._lanes, *shape(eqn.outvars[0])))

    def _starts(self, atoms: Any, box: Box, rows: jax.Array, outside: Any, batched: Any) -> list[Start]:
        """Starts along each dimension: int, or one for each lane."""
        starts: list[Start] = []
        for dim, (atom, known) in enumerate(zip(atoms, box.starts, strict=True)):
            if dim == box.axis:
                starts.append(rows)
            elif isinstance(known, int):
                starts.append(known)
            else:
                starts.append(self._each(atom, outside, batched))
        return starts

    def _write(self, eqn: ir.JaxprEqn, pool: jax.Array, outside: dict[ir.Var, Any], batched: Any) -> jax.Array:
        box, name = self.owners.own[id(eqn)], eqn.primitive.name
        atom = eqn.invars[1 if name == "dynamic_update_slice" else 2]
        update = self._each(atom, outside, batched)
        rows = self._rows(box, outside)
        scatter = SCATTERS[name]
        if None in box.starts and name != "dynamic_update_slice":
            return scatter(
                pool,
                batched[eqn.invars[1]],
                update,
                _with_lanes(eqn.params["dimension_numbers"]),
                mode=eqn.params["mode"],
                unique_indices=eqn.params["unique_indices"],
            )
        atoms = eqn.invars[2:] if name == "dynamic_update_slice" else box.starts
        starts = self._starts(atoms, box, rows, outside, batched)
        dims = indexed_dims(pool.shape, box.axis, starts, box.sizes)
        index = row_index(pool.shape, dims, box.axis, starts, box.sizes, self._lanes)
        numbers = lax.ScatterDimensionNumbers(tuple(range(1, pool.ndim + 1)), (), dims)
        update = lax.reshape(update, (self._lanes, *box.sizes))
        return scatter(pool, index, update, numbers, mode="drop", unique_indices=True)

    def _each(self, atom: ir.Atom, outside: dict[ir.Var, Any], batched: Any) -> jax.Array:
        """A value with the lanes in front."""
        if isinstance(atom, ir.Literal):
            value = jnp.asarray(atom.val, ir.dtype_of(atom))
        elif atom in batched:
            return batched[atom]
        else:
            value = outside[atom]
        return jnp.broadcast_to(value[None], (self._lanes, *value.shape))


def first_version(owners: LaneOwners, work: SameWork, eqn: ir.JaxprEqn) -> ir.Var:
    """Return the version before all of this work of the pool that an equation reads or writes."""
    makers, mine = owners.accesses.makers, work.equations
    version = owners.accesses.version(eqn)
    while version in makers and id(makers[version]) in mine:
        version = owners.accesses.version(makers[version])
    return version


def _with_lanes(numbers: lax.ScatterDimensionNumbers) -> lax.ScatterDimensionNumbers:
    """Return the dimension numbers for indices and updates with the lanes in front."""
    return lax.ScatterDimensionNumbers(
        tuple(dim + 1 for dim in numbers.update_window_dims),
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
    )


def _joined(join: Join, value: jax.Array) -> jax.Array:
    if join.eqn.primitive.name == "stack":
        return jnp.moveaxis(value, 0, join.axis)
    front = jnp.moveaxis(value, 0, join.axis)
    return lax.reshape(front, shape(join.eqn.outvars[0]))
