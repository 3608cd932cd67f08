"""Batched computation of all lanes' equal work, on arrays [lanes, ...]."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.jaxpr import ir, rewriting
from ir_passes.rewrites.lane_owners import Root
from ir_passes.rewrites.pool_access import READS, Box, SlotIndex
from ir_passes.rewrites.same_work import Different, SameWork, updates_of

SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "dynamic_update_slice": lax.scatter,
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-mul": lax.scatter_mul,
    "scatter-sub": lax.scatter_sub,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}


class BatchedWork:
    """Lane 0's equations, run for all lanes.

    An out-of-range row index never reaches another lane's row: a read is filled (NaN; the smallest integer), a write is
    dropped, and nothing wraps.

    Attributes:
        arrays: outside variable -> array; first version of a pool -> current version.
        batched: variable of lane 0 -> values of all lanes, [lanes, ...].
    """

    def __init__(self, work: SameWork, arrays: dict[ir.Var, jax.Array], batched: dict[ir.Var, jax.Array]) -> None:
        self.work, self.owners, self.arrays, self.batched = work, work.owners, arrays, batched
        self.accesses, self.lanes = work.owners.accesses, work.owners.graph.bound.lanes
        pending: list[ir.JaxprEqn] = []
        for eqn in [*work.named, *work.lanes[0]]:
            box = self.owners.boxes.get(id(eqn))
            if self._is_entry(eqn):
                continue
            if box is None:
                pending.append(eqn)
                continue
            self._run(pending)
            pending = []
            version = work.first_version(eqn.invars[0])
            if eqn.primitive.name in READS:
                batched[eqn.outvars[0]] = self._read(eqn, box, arrays[version])
            else:
                arrays[version] = self._write(eqn, box, arrays[version])
        self._run(pending)

    def _is_entry(self, eqn: ir.JaxprEqn) -> bool:
        """Record the result if it is an entry of an array or slot map."""
        var, index = eqn.outvars[0], self.accesses.index
        entry, root = index(var), self.owners.roots.get(var)
        if isinstance(entry, SlotIndex) and len(eqn.outvars) == 1:
            entries = [SlotIndex(entry.map, lane) for lane in range(self.lanes)]
            if [index(other) for other in self.work.alike[var]] == entries:
                slots = lax.reshape(self._slots(entry.map), (self.lanes, *ir.shape_of(var)))
                self.batched[var] = lax.convert_element_type(slots, ir.dtype_of(var))
                return True
        if root is None:
            return False
        array, sizes = self.arrays[root.source], list(ir.shape_of(var))
        sizes[root.dim] = self.lanes
        if tuple(sizes) != array.shape:
            starts: list[Any] = list(eqn.params.get("start_indices") or map(self._value, eqn.invars[1:]))
            starts[root.dim] = 0
            array = lax.dynamic_slice(array, starts, sizes)
        self.batched[var] = self._front(root, array, ir.shape_of(var))
        return True

    def _front(self, root: Root, array: jax.Array, shape: Sequence[int]) -> jax.Array:
        return lax.reshape(jnp.moveaxis(array, root.dim, 0), (self.lanes, *shape))

    def _value(self, atom: ir.Atom) -> jax.Array:
        return jnp.asarray(atom.val, ir.dtype_of(atom)) if isinstance(atom, ir.Literal) else self.arrays[atom]

    def _slots(self, position: int) -> jax.Array:
        return self.arrays[self.owners.graph.program.jaxpr.invars[position]]

    def each(self, atom: ir.Atom) -> jax.Array:
        """Return a value of lane 0 for all lanes, [lanes, ...].

        Raises:
            Different: other lanes lack it.
        """
        if isinstance(atom, ir.Literal) or (atom in self.arrays and atom not in self.batched):
            value = self._value(atom)
            return jnp.broadcast_to(value[None], (self.lanes, *value.shape))
        if atom not in self.batched and atom in self.owners.roots:
            root = self.owners.roots[atom]
            self.batched[atom] = self._front(root, self.arrays[root.source], ir.shape_of(atom))
        if atom not in self.batched:
            raise Different("values from the lanes' own earlier work do not correspond")
        return self.batched[atom]

    def _run(self, eqns: Sequence[ir.JaxprEqn]) -> None:
        results = {var for eqn in eqns for var in eqn.outvars if not isinstance(var, ir.DropVar)}
        if not results:
            return
        operands = dict.fromkeys(var for eqn in eqns for var in ir.variables(eqn.invars) if var not in results)
        axes = [None if var in self.arrays and var not in self.batched else 0 for var in operands]
        values = [self.each(var) if axis == 0 else self.arrays[var] for var, axis in zip(operands, axes, strict=True)]
        run = jax.vmap(rewriting.run_eqns(eqns, list(operands), list(results)), in_axes=axes, axis_size=self.lanes)
        self.batched.update(zip(results, run(*values), strict=True))

    def _rows(self, box: Box) -> jax.Array:
        return self._slots(box.row.map) if isinstance(box.row, SlotIndex) else lax.iota(jnp.int32, self.lanes)

    def _window(self, box: Box, pool: jax.Array) -> tuple[jax.Array, tuple[int, ...], tuple[int, ...]]:
        """Return index vectors [lanes, dims], window dimensions of [lanes, *box.sizes], and indexed dimensions."""
        rows, starts = self._rows(box), cast(Sequence[int], box.starts)
        partial = [dim for dim in range(pool.ndim) if box.sizes[dim] < pool.shape[dim] and starts[dim] != 0]
        dims = tuple(sorted({box.axis, *partial}))
        columns = [rows if dim == box.axis else jnp.full_like(rows, starts[dim]) for dim in dims]
        return lax.concatenate([column[:, None] for column in columns], 1), tuple(range(1, pool.ndim + 1)), dims

    def _read(self, eqn: ir.JaxprEqn, box: Box, pool: jax.Array) -> jax.Array:
        index, window, dims = self._window(box, pool)
        numbers = lax.GatherDimensionNumbers(window, (), dims)
        values = lax.gather(pool, index, numbers, box.sizes, mode="fill")
        return lax.reshape(values, (self.lanes, *ir.shape_of(eqn.outvars[0])))

    def _write(self, eqn: ir.JaxprEqn, box: Box, pool: jax.Array) -> jax.Array:
        index, window, dims = self._window(box, pool)
        numbers = lax.ScatterDimensionNumbers(window, (), dims)
        (update,) = eqn.invars[updates_of(eqn)]
        values = lax.reshape(self.each(update), (self.lanes, *box.sizes))
        return SCATTERS[eqn.primitive.name](pool, index, values, numbers, mode="drop", unique_indices=True)
