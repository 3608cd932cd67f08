"""Check that arrays written to a pool have its named dimensions in order.

Names enter by pools and by `name_dims`, and spread through operations that align dimensions (addition, products). A
write aligns nothing: the written array must have the pool's names already. The same holds for operations that join or
replace arrays: `select_n`, `concatenate`, carries of loops, branches of `cond`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ir_passes.contract.contract import BoundContract, Opaque, Pool
from ir_passes.contract.declared import opaque_of
from ir_passes.contract.opaque import donors, fits
from ir_passes.jaxpr import ir, primitives
from ir_passes.proof import refusals
from ir_passes.proof.dims.classes import NAMED, Conflict, Dimension, fresh, met, runs_along, same, tie
from ir_passes.proof.dims.rules import DIMENSION_RULES, Dims, exchanged_by_index, window_of_scatter
from ir_passes.proof.violations import Place, Violation, violation_at

Leaves = list[int | None]


def name_dims(x: Array, *names: str | None) -> Array:
    """Return the array with named dimensions, for the check of pools.

    Args:
        names: for each dimension, or None. No effect under `vmap`, which adds a dimension: name it outside.

    Raises:
        ValueError: the number of names is not the number of dimensions.
    """
    if len(names) != x.ndim:
        raise ValueError(f"name_dims: expected {x.ndim} names for an array of shape {x.shape}, got {names}")
    return checkpoint_name(x, NAMED + ",".join(name or "" for name in names))


def dim_violations(bound: BoundContract, flat: ir.ClosedJaxpr, values: Mapping[Any, Any]) -> list[Violation]:
    if not any(isinstance(array.entry, Pool) and array.entry.dims for array in bound.inputs):
        return []
    walk = _Walk(bound, values)
    names = [array.entry.dims if isinstance(array.entry, Pool) else None for array in bound.inputs]
    inputs = [_with_names(array.shape, dim_names) for array, dim_names in zip(bound.inputs, names, strict=True)]
    leaves: Leaves = [k if dim_names is not None else None for k, dim_names in enumerate(names)]
    results, versions = walk.run(flat.jaxpr, inputs, leaves)
    makers = {id(var): index for index, eqn in enumerate(flat.jaxpr.eqns) for var in eqn.outvars}
    for leaf, successor in bound.successors.items():
        if leaves[leaf] is not None and versions[successor] != leaf:
            index = makers.get(id(flat.jaxpr.outvars[successor]), len(flat.jaxpr.eqns))
            walk.check(flat.jaxpr, index, leaf, dict(enumerate(results[successor])))
    return walk.violations


def _with_names(shape: Sequence[int], dim_names: tuple[str | None, ...] | None) -> Dims:
    return tuple(
        Dimension(size, dim_name) for size, dim_name in zip(shape, dim_names or [None] * len(shape), strict=True)
    )


def _tie_names(dims: Dims, names: Sequence[str | None]) -> None:
    for dim, named in zip(dims, _with_names([dim.size for dim in dims], tuple(names)), strict=True):
        tie(dim, named)


class _Walk:
    """A pass over a program; `leaf` maps versions to their named pools."""

    def __init__(self, bound: BoundContract, values: Mapping[Any, Any]):
        self.bound = bound
        self.values = values
        self.violations: list[Violation] = []
        self._callers: tuple[ir.JaxprEqn, ...] = ()
        pools = [array.entry for array in bound.inputs if isinstance(array.entry, Pool) and array.entry.dims]
        dims = [(name, axis == pool.axis) for pool in pools for axis, name in enumerate(pool.dims or ()) if name]
        self._row_names = {name for name, is_row in dims if is_row} - {name for name, is_row in dims if not is_row}

    def run(self, jaxpr: Any, inputs: Sequence[Dims], leaves: Sequence[int | None]) -> tuple[list[Dims], Leaves]:
        dims: dict[Any, Dims] = {var: fresh(ir.shape_of(var)) for var in jaxpr.constvars}
        dims.update(zip(jaxpr.invars, inputs, strict=True))
        leaf: dict[Any, int | None] = dict(zip(jaxpr.invars, leaves, strict=True))

        def dims_of(atom: Any) -> Dims:
            return () if isinstance(atom, ir.Literal) else dims[atom]

        def leaf_of(atom: Any) -> int | None:
            return None if isinstance(atom, ir.Literal) else leaf.get(atom)

        for index, eqn in enumerate(jaxpr.eqns):
            operands = [dims_of(atom) for atom in eqn.invars]
            pools = [leaf_of(atom) for atom in eqn.invars]
            results, versions = self._equation(jaxpr, index, operands, pools)
            dims.update(zip(eqn.outvars, results, strict=True))
            leaf.update(zip(eqn.outvars, versions, strict=True))
        return [dims_of(atom) for atom in jaxpr.outvars], [leaf_of(atom) for atom in jaxpr.outvars]

    def _equation(self, jaxpr: Any, index: int, operands: list[Dims], pools: Leaves) -> Any:
        eqn = jaxpr.eqns[index]
        name = eqn.primitive.name
        nothing: Leaves = [None] * len(eqn.outvars)
        try:
            if name in primitives.WRITES and pools[0] is not None:
                self._write(jaxpr, index, operands, pools[0])
                return [operands[0]], [pools[0]]
            if name == "name" and eqn.params["name"].startswith(NAMED):
                dim_names = tuple(dim_name or None for dim_name in eqn.params["name"].removeprefix(NAMED).split(","))
                if len(dim_names) == len(operands[0]):
                    _tie_names(operands[0], dim_names)
                return [operands[0]], [pools[0]]
            rule = DIMENSION_RULES.get(name)
            if rule is not None:
                results = rule(eqn, *operands)
                if name in primitives.SCATTERS:
                    exchanged = exchanged_by_index(eqn, operands[0], operands[2], self._row_names)
                    sizes = {axis: Dimension(results[0][axis].size, lost="") for axis in exchanged}
                    results = [tuple(sizes.get(axis, dim) for axis, dim in enumerate(results[0]))]
                return self._placed(eqn, results), nothing
            declared = opaque_of(eqn, self.bound.opaque)
            if declared is not None and fits(declared[1], ir.shapes(eqn.invars), ir.shapes(eqn.outvars)):
                return self._declared(eqn, declared[1], operands, pools)
            nested = self._nested(jaxpr, index, operands, pools)
            if nested is not None:
                return nested
        except Conflict as conflict:
            self._conflict(jaxpr, index, conflict, "runs together with")
        return [fresh(ir.shape_of(var)) for var in eqn.outvars], nothing

    def _declared(self, eqn: Any, entry: Opaque, operands: list[Dims], pools: Leaves) -> Any:
        for dims, declared in zip(operands, entry.inputs, strict=True):
            if isinstance(declared, Pool) and declared.dims:
                _tie_names(dims, declared.dims)
        dim_names = [declared.dims if isinstance(declared, Pool) else None for declared in entry.outputs]
        leaves = donors(entry)
        versions = [pools[leaves[k]] if dims else None for k, dims in enumerate(dim_names)]
        return [_with_names(ir.shape_of(var), dims) for var, dims in zip(eqn.outvars, dim_names, strict=True)], versions

    def _write(self, jaxpr: Any, index: int, operands: list[Dims], pool: int) -> None:
        eqn, x = jaxpr.eqns[index], operands[0]
        exchanged = set[int]()
        if eqn.primitive.name == "dynamic_update_slice":
            window = dict(enumerate(operands[1]))
        else:
            window = window_of_scatter(eqn, x, operands[1], operands[2])
            exchanged = exchanged_by_index(eqn, x, operands[2], self._row_names)
        # a part without a name may be of any dimension
        named = {axis: dim for axis, dim in window.items() if dim.size == x[axis].size or runs_along(dim)}
        named |= {axis: Dimension(x[axis].size) for axis in exchanged}
        self.check(jaxpr, index, pool, named)

    def check(self, jaxpr: Any, index: int, pool: int, written: dict[int, Dimension]) -> None:
        """Report wrong dimensions, as one violation per write."""
        bound = self.bound.inputs[pool]
        assert isinstance(bound.entry, Pool) and bound.entry.dims is not None
        wrong = [
            (expected, dim.root())
            for axis, dim in written.items()
            if (expected := bound.entry.dims[axis]) is not None
            and axis != bound.entry.axis
            and not (dim.size == 1 or dim.repeated or runs_along(dim) == {expected})
        ]
        if wrong:
            self._report(jaxpr, index, refusals.wrong_dimensions(bound, wrong), [bound.path])

    def _conflict(self, jaxpr: Any, index: int, conflict: Conflict, how: str) -> None:
        names, inputs = set(conflict.args), self.bound.inputs
        pools = [pool.path for pool in inputs if names & set(getattr(pool.entry, "dims", None) or ())]
        self._report(jaxpr, index, refusals.TWO_DIMENSIONS(names=conflict.args, how=how), pools)

    def _report(self, jaxpr: Any, index: int, text: refusals.RefusalText, pools: Sequence[str]) -> None:
        place = Place(jaxpr, index, self.values.get(jaxpr, {}))
        self.violations.append(violation_at(place, *text, tuple(pools), self._callers))

    def _placed(self, eqn: Any, results: list[Dims]) -> list[Dims]:
        for dim in (dim for dims in results for dim in dims if dim.lost == ""):
            dim.lost = ir.source_of(eqn)
        return results

    def _nested(self, jaxpr: Any, index: int, operands: list[Dims], pools: Leaves) -> Any:
        outer, self._callers = self._callers, (jaxpr.eqns[index], *self._callers)
        try:
            return self._inside(jaxpr, index, operands, pools)
        finally:
            self._callers = outer

    def _inside(self, jaxpr: Any, index: int, operands: list[Dims], pools: Leaves) -> Any:
        eqn = jaxpr.eqns[index]
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            return self._scan(jaxpr, index, operands, pools)
        if name == "while":
            first = params["cond_nconsts"]
            counts = params["body_nconsts"], len(operands) - first - params["body_nconsts"]
            return self._loop(jaxpr, index, params["body_jaxpr"], counts, operands[first:], pools[first:])
        if name == "cond":
            return self._cond(jaxpr, index, operands[1:], pools[1:])
        if name == "shard_map":
            body = ir.body_of(eqn) or ir.closed(params["jaxpr"])
            inner = _resized(operands, ir.shapes(body.jaxpr.invars))
            results, versions = self.run(body.jaxpr, inner, pools)
            return _resized(results, ir.shapes(eqn.outvars)), versions
        body = ir.body_of(eqn)
        return None if body is None else self.run(body.jaxpr, operands, pools)

    def _cond(self, jaxpr: Any, index: int, operands: list[Dims], pools: Leaves) -> Any:
        branches = [self.run(branch.jaxpr, operands, pools) for branch in jaxpr.eqns[index].params["branches"]]
        results = [self._joined(jaxpr, index, *dims) for dims in zip(*(dims for dims, _ in branches), strict=True)]
        return results, [_common(*leaves) for leaves in zip(*(leaves for _, leaves in branches), strict=True)]

    def _scan(self, jaxpr: Any, index: int, operands: list[Dims], pools: Leaves) -> Any:
        eqn = jaxpr.eqns[index]
        counts = ir.scan_counts(eqn)
        first = sum(counts)
        steps = [dims[0] for dims in operands[first:]]
        for dim in steps[1:]:
            tie(steps[0], dim)
        along = next((dim for dim in steps if not dim.repeated), Dimension(eqn.params["length"]))
        inner = [*operands[:first], *(dims[1:] for dims in operands[first:])]
        leaves: Leaves = [*pools[:first], *(None for _ in steps)]
        results, versions = self._loop(jaxpr, index, eqn.params["jaxpr"], counts, inner, leaves)
        stacked = [(along, *dims) for dims in results[counts[1] :]]
        return [*results[: counts[1]], *stacked], [*versions[: counts[1]], *(None for _ in stacked)]

    def _loop(
        self, jaxpr: Any, index: int, body: Any, counts: tuple[int, int], inner: list[Dims], pools: Leaves
    ) -> Any:
        begin, end = counts[0], sum(counts)
        dims_in, leaves, first = list(inner), list(pools), []
        while True:
            mark = len(self.violations)
            results, versions = self.run(ir.closed(body).jaxpr, dims_in, leaves)
            first = first or results
            carried = [_carried(*dims) for dims in zip(dims_in[begin:end], results, strict=False)]
            same_leaves: Leaves = [_common(*two) for two in zip(leaves[begin:end], versions, strict=False)]
            if carried == dims_in[begin:end] and same_leaves == leaves[begin:end]:
                break
            dims_in[begin:end], leaves[begin:end] = carried, same_leaves
            del self.violations[mark:]
        for k, start in enumerate(inner[begin:end]):
            results[k] = self._joined(jaxpr, index, start, first[k], results[k])
        return results, versions

    def _joined(self, jaxpr: Any, index: int, *arrays: Dims) -> Dims:
        result = []
        for dims in zip(*arrays, strict=True):
            try:
                result.append(met(*dims))
            except Conflict as conflict:
                self._conflict(jaxpr, index, conflict, "stands in the place of")
                result.append(Dimension(dims[0].size))
        return self._placed(jaxpr.eqns[index], [tuple(result)])[0]


def _common(*leaves: int | None) -> int | None:
    return leaves[0] if len(set(leaves)) == 1 else None


def _carried(carry: Dims, results: Dims) -> Dims:
    return tuple(
        old if old.lost is not None or new.repeated or (same(old, new) and not old.repeated)
        else new if old.repeated
        else Dimension(old.size, lost="")
        for old, new in zip(carry, results, strict=True)
    )  # fmt: skip


def _resized(arrays: Sequence[Dims], shapes: Sequence[Sequence[int]]) -> list[Dims]:
    """Return dimensions of the devices' parts, or of the joined parts."""
    resized = []
    for dims, shape in zip(arrays, shapes, strict=True):
        resized.append(tuple(Dimension(size, repeated=dim.repeated) for dim, size in zip(dims, shape, strict=True)))
        for dim, part in zip(dims, resized[-1], strict=True):
            tie(dim, part)
    return resized
