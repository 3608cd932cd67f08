"""The proof that arrays written to a pool have its named dimensions in the pool's order, even where sizes agree.

Names enter by the pools that a step reads and by `name_dims`; they spread through the operations that make dimensions
run together. A write ties nothing: the dimensions of what is written must carry the pool's names already. Nor does any
other operation that puts arrays beside each other or in each other's place: a choice between the old rows and others, a
write to a part that was taken out, what a loop carries, the branches of a condition.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ir_passes.contract.contract import BoundContract, Opaque, Pool
from ir_passes.contract.declared import opaque_of
from ir_passes.contract.opaque import donors, fits
from ir_passes.jaxpr import ir, primitives
from ir_passes.proof.dims.classes import NAMED, Conflict, Dimension, fresh, met, runs_along, same, tie
from ir_passes.proof.dims.rules import DIMENSION_RULES, Dims, window_of_scatter, window_of_update
from ir_passes.proof.violations import Place, Violation, ViolationKind

Leaves = list[int | None]
_REMEDY = "give the array its dimensions in the pool's order, or name them: name_dims(x, 'head', 'key', 'value')"


def name_dims(x: Array, *names: str | None) -> Array:
    """Name the dimensions of an array, for the check of pools with named dimensions; returned as it is.

    Args:
        x: the array.
        names: one for each dimension; None where it has no name. Inside of a function that `vmap` maps they say
            nothing, for the array has a dimension more then, which may be any: name it outside.

    Raises:
        ValueError: another number of names than dimensions.
    """
    if len(names) != x.ndim:
        raise ValueError(f"name_dims: expected {x.ndim} names for an array of shape {x.shape}, got {names}")
    return checkpoint_name(x, NAMED + ",".join(name or "" for name in names))


def dim_violations(bound: BoundContract, flat: ir.ClosedJaxpr, known: Mapping[Any, Any]) -> list[Violation]:
    """Return the faults in dimensions of pools that name them; empty where no pool does.

    Args:
        bound: the contract.
        flat: the program.
        known: the lane proof's abstract values of each program in it, for `Violation.place`.
    """
    if not any(isinstance(one.entry, Pool) and one.entry.dims for one in bound.inputs):
        return []
    walk = _Walk(bound, known)
    names = [one.entry.dims if isinstance(one.entry, Pool) else None for one in bound.inputs]
    inputs = [_with_names(one.shape, dim_names) for one, dim_names in zip(bound.inputs, names, strict=True)]
    leaves: Leaves = [k if dim_names is not None else None for k, dim_names in enumerate(names)]
    results, versions = walk.run(flat.jaxpr, inputs, leaves)
    makers = {id(var): index for index, eqn in enumerate(flat.jaxpr.eqns) for var in eqn.outvars}
    for before, after in bound.successors.items():
        if leaves[before] is not None and versions[after] != before:
            made = makers.get(id(flat.jaxpr.outvars[after]), len(flat.jaxpr.eqns))
            walk.check(flat.jaxpr, made, before, dict(enumerate(results[after])))
    return walk.violations


def _with_names(shape: Sequence[int], dim_names: tuple[str | None, ...] | None) -> Dims:
    return tuple(
        Dimension(size, dim_name) for size, dim_name in zip(shape, dim_names or [None] * len(shape), strict=True)
    )


class _Walk:
    """One pass over a program; `leaf` says which variables are versions of which pool with named dimensions."""

    def __init__(self, bound: BoundContract, known: Mapping[Any, Any]):
        self.bound = bound
        self.known = known
        self.violations: list[Violation] = []
        self._callers: tuple[str, ...] = ()

    def run(self, jaxpr: Any, inputs: Sequence[Dims], leaves: Sequence[int | None]) -> tuple[list[Dims], Leaves]:
        """Dimensions of the results, and the pools that they are versions of."""
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
        """Return the dimensions of an equation's results, and the pools that they are versions of."""
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
                    for mine, named in zip(
                        operands[0], _with_names([dim.size for dim in operands[0]], dim_names), strict=True
                    ):
                        tie(mine, named)
                return [operands[0]], [pools[0]]
            rule = DIMENSION_RULES.get(name)
            if rule is not None:
                return self._placed(eqn, rule(eqn, *operands)), nothing
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
        """Results of an operation with a declaration: its pools have the dimensions that it says, before and after."""
        for dims, one in zip(operands, entry.inputs, strict=True):
            if isinstance(one, Pool) and one.dims:
                for dim, named in zip(dims, _with_names([dim.size for dim in dims], one.dims), strict=True):
                    tie(dim, named)
        dim_names = [one.dims if isinstance(one, Pool) else None for one in entry.outputs]
        before = donors(entry)
        versions = [pools[before[k]] if dims else None for k, dims in enumerate(dim_names)]
        return [_with_names(ir.shape_of(var), dims) for var, dims in zip(eqn.outvars, dim_names, strict=True)], versions

    def _write(self, jaxpr: Any, index: int, operands: list[Dims], pool: int) -> None:
        eqn, x = jaxpr.eqns[index], operands[0]
        if eqn.primitive.name == "dynamic_update_slice":
            window = window_of_update(x, operands[1])
        else:
            window = window_of_scatter(eqn, x, operands[1], operands[2])
        self.check(jaxpr, index, pool, window)

    def check(self, jaxpr: Any, index: int, pool: int, written: dict[int, Dimension]) -> None:
        """Report the whole dimensions that are written and do not carry the pool's names: one fault for each write."""
        bound = self.bound.inputs[pool]
        assert isinstance(bound.entry, Pool) and bound.entry.dims is not None
        wrong = []
        for axis, dim in written.items():
            expected = bound.entry.dims[axis]
            anything = axis == bound.entry.axis or dim.size == 1 or dim.repeated or expected is None
            if anything or runs_along(dim) == {expected}:
                continue
            found = dim.root().name
            what = "an array that has no name for it" if found is None else f"dimension {found!r} of an array"
            if found is None and dim.root().lost:
                what += f", put together from several at {dim.root().lost}"
            wrong.append(f"dimension {expected!r} of {bound.path} is written with {what}")
        if wrong:
            names = [None if axis == bound.entry.axis else name for axis, name in enumerate(bound.entry.dims)]
            named = f"name_dims(x, {', '.join(map(repr, names))})"
            remedy = (
                f"give the array the pool's order of dimensions; where it has that, name them: {named} of what is "
                "written, or of each array that it is put together from"
            )
            self._report(jaxpr, index, "; ".join(wrong), [bound.path], remedy)

    def _conflict(self, jaxpr: Any, index: int, conflict: Conflict, how: str) -> None:
        one, other = conflict.names
        pools = [pool.path for pool in self.bound.inputs if {one, other} & set(getattr(pool.entry, "dims", None) or ())]
        self._report(jaxpr, index, f"dimension {one!r} of a pool {how} dimension {other!r}", pools)

    def _report(self, jaxpr: Any, index: int, message: str, pools: Sequence[str], remedy: str = _REMEDY) -> None:
        eqn = jaxpr.eqns[index] if index < len(jaxpr.eqns) else None
        name, frames = ("", ()) if eqn is None else (eqn.primitive.name, (*ir.frames_of(eqn), *self._callers))
        place = Place(jaxpr, index, self.known.get(jaxpr, {}))
        source, *around = frames or ("unknown",)
        kind = ViolationKind.DIMENSIONS
        self.violations.append(Violation(kind, name, source, message, remedy, tuple(pools), place, tuple(around)))

    def _placed(self, eqn: Any, results: list[Dims]) -> list[Dims]:
        """Record the place where an equation has lost dimensions."""
        for dim in (dim for dims in results for dim in dims if dim.lost == ""):
            dim.lost = ir.source_of(eqn)
        return results

    def _nested(self, jaxpr: Any, index: int, operands: list[Dims], pools: Leaves) -> Any:
        """Run the programs inside an equation; None where it has none."""
        before = self._callers
        self._callers = (*ir.frames_of(jaxpr.eqns[index]), *before)
        try:
            return self._inside(jaxpr, index, operands, pools)
        finally:
            self._callers = before

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
        """Run a loop's body, of constants, carries and scanned arrays, to the fixpoint of its carries' dimensions."""
        before, end = counts[0], sum(counts)
        given, leaves = list(inner), list(pools)
        while True:
            intact = len(self.violations)
            results, versions = self.run(ir.closed(body).jaxpr, given, leaves)
            carried = [_carried(*dims) for dims in zip(given[before:end], results, strict=False)]
            same_leaves: Leaves = [_common(*two) for two in zip(leaves[before:end], versions, strict=False)]
            if carried == given[before:end] and same_leaves == leaves[before:end]:
                break
            given[before:end], leaves[before:end] = carried, same_leaves
            del self.violations[intact:]
        for k, start in enumerate(inner[before:end]):
            results[k] = self._joined(jaxpr, index, start, results[k])
        return results, versions

    def _joined(self, jaxpr: Any, index: int, *arrays: Dims) -> Dims:
        """Join the dimensions of several arrays of which the result is one."""
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


def _carried(given: Dims, after: Dims) -> Dims:
    """Join the dimensions that a loop was taken to carry into its body with those that came out of it."""
    return tuple(
        one if one.lost is not None or other.repeated or (same(one, other) and not one.repeated)
        else other if one.repeated
        else Dimension(one.size, lost="")
        for one, other in zip(given, after, strict=True)
    )  # fmt: skip


def _resized(arrays: Sequence[Dims], shapes: Sequence[Sequence[int]]) -> list[Dims]:
    """Return the dimensions of the part of each array that a device has, or of the arrays that the parts make up."""
    found = []
    for dims, shape in zip(arrays, shapes, strict=True):
        other = tuple(Dimension(size, repeated=dim.repeated) for dim, size in zip(dims, shape, strict=True))
        for one, part in zip(dims, other, strict=True):
            tie(one, part)
        found.append(other)
    return found
