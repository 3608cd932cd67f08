"""The proof that what is written to a labelled pool has its dimensions in the pool's order, even where sizes agree.

Labels enter by the pools that a step reads and by `name_dims`; they spread through the operations that make dimensions
run together. A write ties nothing: the dimensions of what is written must carry the pool's labels already.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ir_passes import ir
from ir_passes.contract import Bound, BoundContract, Opaque, Pool
from ir_passes.declared import opaque_of
from ir_passes.dimension_rules import DIMENSION_RULES, Dims, window_of_scatter
from ir_passes.dimensions import Conflict, Dimension, fresh, unify
from ir_passes.opaque_entries import donors, fits
from ir_passes.violations import Place, Violation, ViolationKind

PREFIX = "dims:"
"""Of the name of an array whose dimensions are named."""
_WRITES = ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "dynamic_update_slice")
_REMEDY = "give the array its dimensions in the pool's order, or name them: name_dims(x, 'head', 'key', 'value')"


def name_dims(x: Array, *labels: str | None) -> Array:
    """Name the dimensions of an array, for the check of labelled pools; returned as it is.

    Args:
        x: the array.
        labels: one for each dimension; None where it has no name.

    Raises:
        ValueError: another number of labels than dimensions.
    """
    if len(labels) != x.ndim:
        raise ValueError(f"name_dims: expected {x.ndim} labels for an array of shape {x.shape}, got {labels}")
    return checkpoint_name(x, PREFIX + ",".join(label or "" for label in labels))


def label_violations(bound: BoundContract, flat: ir.ClosedJaxpr, known: Mapping[Any, Any]) -> list[Violation]:
    """What is wrong with the dimensions of labelled pools; nothing where no pool has labels.

    Args:
        bound: the contract.
        flat: the program.
        known: what the lane proof knows of the variables of each program in it, for `Violation.place`.
    """
    if not any(isinstance(one.entry, Pool) and one.entry.dims for one in bound.inputs):
        return []
    walk = _Walk(bound, known)
    inputs = [_labelled(one.shape, one.entry.dims if isinstance(one.entry, Pool) else None) for one in bound.inputs]
    leaves = [k if isinstance(one.entry, Pool) and one.entry.dims else None for k, one in enumerate(bound.inputs)]
    results, versions = walk.run(flat.jaxpr, inputs, leaves)
    for before, after in bound.successors.items():
        if leaves[before] is not None and versions[after] is None:
            walk.check(flat.jaxpr, len(flat.jaxpr.eqns), before, dict(enumerate(results[after])))
    return walk.violations


def _labelled(shape: Sequence[int], labels: tuple[str | None, ...] | None) -> Dims:
    return tuple(Dimension(size, label) for size, label in zip(shape, labels or [None] * len(shape), strict=True))


class _Walk:
    """One pass over a program; `leaf` says which variables are versions of which labelled pool."""

    def __init__(self, bound: BoundContract, known: Mapping[Any, Any]):
        self.bound = bound
        self.known = known
        self.violations: list[Violation] = []

    def run(
        self, jaxpr: Any, inputs: Sequence[Dims], leaves: Sequence[int | None]
    ) -> tuple[list[Dims], list[int | None]]:
        """Dimensions of the results, and the pools that they are versions of."""
        dims: dict[Any, Dims] = {var: fresh(var.aval.shape) for var in jaxpr.constvars}
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

    def _equation(self, jaxpr: Any, index: int, operands: list[Dims], pools: list[int | None]) -> Any:
        eqn = jaxpr.eqns[index]
        name = eqn.primitive.name
        nothing: list[int | None] = [None] * len(eqn.outvars)
        try:
            if name in _WRITES and pools[0] is not None:
                self._write(jaxpr, index, operands, pools[0])
                return [operands[0]], [pools[0]]
            declared = opaque_of(eqn, self.bound.opaque)
            if declared is not None and fits(declared[1], ir.shapes(eqn.invars), ir.shapes(eqn.outvars)):
                return self._declared(eqn, declared[1], operands, pools)
            nested = self._nested(eqn, operands, pools)
            if nested is not None:
                return nested
            if name == "name" and eqn.params["name"].startswith(PREFIX):
                labels = tuple(label or None for label in eqn.params["name"].removeprefix(PREFIX).split(","))
                if len(labels) == len(operands[0]):
                    for mine, named in zip(
                        operands[0], _labelled([dim.size for dim in operands[0]], labels), strict=True
                    ):
                        unify(mine, named)
                return [operands[0]], [pools[0]]
            rule = DIMENSION_RULES.get(name)
            if rule is not None:
                return rule(eqn, *operands), nothing
        except Conflict as conflict:
            one, other = conflict.labels
            message = f"dimension {one!r} of a pool runs together with dimension {other!r}"
            self._report(jaxpr, index, message, [pool.path for pool, dims in self._pools() if {one, other} & set(dims)])
        return [fresh(var.aval.shape) for var in eqn.outvars], nothing

    def _declared(self, eqn: Any, entry: Opaque, operands: list[Dims], pools: list[int | None]) -> Any:
        """Results of an operation with a declaration: its pools have the dimensions that it says, before and after."""
        for dims, one in zip(operands, entry.inputs, strict=True):
            if isinstance(one, Pool) and one.dims:
                _tie([dims], [_labelled([dim.size for dim in dims], one.dims)])
        labels = [one.dims if isinstance(one, Pool) else None for one in entry.outputs]
        before = donors(entry)
        versions = [pools[before[k]] if dims else None for k, dims in enumerate(labels)]
        return [_labelled(var.aval.shape, dims) for var, dims in zip(eqn.outvars, labels, strict=True)], versions

    def _write(self, jaxpr: Any, index: int, operands: list[Dims], pool: int) -> None:
        eqn, x = jaxpr.eqns[index], operands[0]
        if eqn.primitive.name == "dynamic_update_slice":
            window = {d: new for d, (old, new) in enumerate(zip(x, operands[1], strict=True)) if old.size == new.size}
        else:
            window = window_of_scatter(eqn, x, operands[1], operands[2])
        self.check(jaxpr, index, pool, window)

    def check(self, jaxpr: Any, index: int, pool: int, written: dict[int, Dimension]) -> None:
        """Every whole dimension that is written carries the pool's label."""
        bound = self.bound.inputs[pool]
        assert isinstance(bound.entry, Pool) and bound.entry.dims is not None
        for axis, dim in written.items():
            expected, found = bound.entry.dims[axis], dim.root().label
            if axis == bound.entry.axis or dim.size == 1 or found == expected:
                continue
            what = "a dimension that nothing ties to it" if found is None else f"dimension {found!r}"
            self._report(jaxpr, index, f"dimension {expected!r} of {bound.path} is written with {what}", [bound.path])

    def _pools(self) -> Iterator[tuple[Bound, tuple[str, ...]]]:
        """Pools with labels, and these."""
        for one in self.bound.inputs:
            if isinstance(one.entry, Pool) and one.entry.dims:
                yield one, one.entry.dims

    def _report(self, jaxpr: Any, index: int, message: str, pools: Sequence[str]) -> None:
        eqn = jaxpr.eqns[index] if index < len(jaxpr.eqns) else None
        name, source = ("", "unknown") if eqn is None else (eqn.primitive.name, ir.source_of(eqn))
        place = Place(jaxpr, index, self.known.get(jaxpr, {}))
        self.violations.append(Violation(ViolationKind.LABEL, name, source, message, _REMEDY, tuple(pools), place))

    def _nested(self, eqn: Any, operands: list[Dims], pools: list[int | None]) -> Any:
        """Programs inside an equation: what goes in and out of them runs together with what is outside."""
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            return self._scan(eqn, operands, pools)
        if name == "while":
            skip = params["cond_nconsts"]
            body = ir.closed(params["body_jaxpr"])
            carry = operands[skip + params["body_nconsts"] :]
            results, versions = self.run(body.jaxpr, operands[skip:], pools[skip:])
            _tie(results, carry)
            return results, versions
        if name == "cond":
            outcome = None
            for branch in params["branches"]:
                results, versions = self.run(branch.jaxpr, operands[1:], pools[1:])
                if outcome is not None:
                    _tie(outcome[0], results)
                outcome = outcome or (results, versions)
            return outcome
        if ir.body_of(eqn) is not None or name == "shard_map":
            body = ir.body_of(eqn) or ir.closed(params["jaxpr"])
            if name == "shard_map":
                inner = [fresh(var.aval.shape) for var in body.jaxpr.invars]
                _tie([tuple(d for d in dims) for dims in operands], inner, sizes=False)
                return self._out_of_mesh(eqn, *self.run(body.jaxpr, inner, pools))
            return self.run(body.jaxpr, operands, pools)
        return None

    def _out_of_mesh(self, eqn: Any, results: list[Dims], versions: list[int | None]) -> Any:
        outer = [fresh(var.aval.shape) for var in eqn.outvars]
        _tie(outer, results, sizes=False)
        return outer, versions

    def _scan(self, eqn: Any, operands: list[Dims], pools: list[int | None]) -> Any:
        num_consts, num_carry = ir.scan_counts(eqn)
        body = ir.closed(eqn.params["jaxpr"])
        first = num_consts + num_carry
        inner = [*operands[:first], *(dims[1:] for dims in operands[first:])]
        results, versions = self.run(body.jaxpr, inner, [*pools[:first], *(None for _ in pools[first:])])
        _tie(results[:num_carry], operands[num_consts:first])
        length = eqn.params["length"]
        stacked = [(Dimension(length), *dims) for dims in results[num_carry:]]
        return [*results[:num_carry], *stacked], [*versions[:num_carry], *(None for _ in stacked)]


def _tie(some: Sequence[Dims], others: Sequence[Dims], sizes: bool = True) -> None:
    for one, other in zip(some, others, strict=True):
        for a, b in zip(one, other, strict=True):
            if not sizes or a.size == b.size:
                unify(a, b)
