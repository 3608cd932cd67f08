"""Which dimensions of operands and results run together, for each operation that says so.

An operation without a rule here ties nothing: a dimension that nothing ties is then reported where it is written to a
labelled pool.
"""

from collections.abc import Callable
from typing import Any

from ir_passes.dimensions import Dimension, fresh, reshape, unify
from ir_passes.rules.registry import ELEMENTWISE, IDENTITIES, SUMS

Dims = tuple[Dimension, ...]
Rule = Callable[..., list[Dims]]
DIMENSION_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        DIMENSION_RULES.update(dict.fromkeys(names, function))
        return function

    return register


@_rule(*ELEMENTWISE, *IDENTITIES, "select_n", "reduce_precision")
def _elementwise(eqn: Any, *operands: Dims) -> list[Dims]:
    result = fresh(eqn.outvars[0].aval.shape)
    for dims in operands:
        if len(dims) == len(result):
            for mine, theirs in zip(result, dims, strict=True):
                if mine.size == theirs.size:
                    unify(theirs, mine)
    return [result for _ in eqn.outvars]


@_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "rev")
def _same(eqn: Any, x: Dims) -> list[Dims]:
    return [x]


@_rule("sort")
def _sort(eqn: Any, *operands: Dims) -> list[Dims]:
    return list(operands)


@_rule("reshape", "squeeze")
def _reshape(eqn: Any, x: Dims) -> list[Dims]:
    return [reshape(x, eqn.outvars[0].aval.shape)]


@_rule("broadcast_in_dim")
def _broadcast(eqn: Any, x: Dims, *_: Dims) -> list[Dims]:
    result = list(fresh(eqn.outvars[0].aval.shape))
    for dim, to in zip(x, map(int, eqn.params["broadcast_dimensions"]), strict=True):
        if dim.size == result[to].size:
            result[to] = dim
    return [tuple(result)]


@_rule("transpose")
def _transpose(eqn: Any, x: Dims) -> list[Dims]:
    return [tuple(x[int(axis)] for axis in eqn.params["permutation"])]


@_rule(*"reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split())
def _reduce(eqn: Any, x: Dims) -> list[Dims]:
    gone = {int(axis) for axis in eqn.params["axes"]}
    return [tuple(dim for axis, dim in enumerate(x) if axis not in gone)]


@_rule("dot_general")
def _dot(eqn: Any, x: Dims, y: Dims) -> list[Dims]:
    (x_contract, y_contract), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    for a, b in (*zip(x_contract, y_contract, strict=True), *zip(x_batch, y_batch, strict=True)):
        unify(x[a], y[b])
    free = [dim for d, dim in enumerate(x) if d not in x_contract and d not in x_batch]
    free += [dim for d, dim in enumerate(y) if d not in y_contract and d not in y_batch]
    return [(*(x[d] for d in x_batch), *free)]


@_rule("slice", "dynamic_slice", "pad", "concatenate", "split", "dynamic_update_slice", "tile")
def _partial(eqn: Any, x: Dims, *rest: Dims) -> list[Dims]:
    """Dimensions that keep their length keep their meaning; those of other parts run with them."""
    results = []
    for var in eqn.outvars:
        dims = fresh(var.aval.shape)
        results.append(tuple(old if old.size == new.size else new for old, new in zip(x, dims, strict=True)))
    joined = eqn.params.get("dimension") if eqn.primitive.name == "concatenate" else None
    if joined is not None:
        for other in rest:
            for axis, (a, b) in enumerate(zip(x, other, strict=True)):
                if axis != joined:
                    unify(a, b)
        results = [tuple(Dimension(d.size) if axis == joined else d for axis, d in enumerate(results[0]))]
    return results


@_rule("stack")
def _stack(eqn: Any, *parts: Dims) -> list[Dims]:
    for other in parts[1:]:
        for a, b in zip(parts[0], other, strict=True):
            unify(a, b)
    axis = int(eqn.params["axis"])
    return [(*parts[0][:axis], Dimension(len(parts)), *parts[0][axis:])]


@_rule(*SUMS, "pmax", "pmin")
def _reduced_over_devices(eqn: Any, *operands: Dims) -> list[Dims]:
    return list(operands)


@_rule("gather")
def _gather(eqn: Any, x: Dims, indices: Dims) -> list[Dims]:
    n = eqn.params["dimension_numbers"]
    result = list(fresh(eqn.outvars[0].aval.shape))
    offset = [int(d) for d in n.offset_dims]
    hidden = {*map(int, n.collapsed_slice_dims), *map(int, n.operand_batching_dims)}
    for old, new in zip((d for d in range(len(x)) if d not in hidden), offset, strict=True):
        if x[old].size == result[new].size:
            result[new] = x[old]
    batch = [d for d in range(len(result)) if d not in offset]
    for axis, new in enumerate(batch):
        result[new] = indices[axis]
    for old, axis in zip(n.operand_batching_dims, n.start_indices_batching_dims, strict=True):
        unify(x[int(old)], indices[int(axis)])
    return [tuple(result)]


def window_of_scatter(eqn: Any, x: Dims, indices: Dims, updates: Dims) -> dict[int, Dimension]:
    """The dimensions of the updates that stand for whole dimensions of the operand."""
    n = eqn.params["dimension_numbers"]
    hidden = {*map(int, n.inserted_window_dims), *map(int, n.operand_batching_dims)}
    window = zip((d for d in range(len(x)) if d not in hidden), map(int, n.update_window_dims), strict=True)
    found = {old: updates[new] for old, new in window if x[old].size == updates[new].size}
    for old, axis in zip(n.operand_batching_dims, n.scatter_indices_batching_dims, strict=True):
        unify(x[int(old)], indices[int(axis)])
    return found


@_rule("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub")
def _scatter(eqn: Any, x: Dims, indices: Dims, updates: Dims) -> list[Dims]:
    for axis, dim in window_of_scatter(eqn, x, indices, updates).items():
        unify(x[axis], dim)
    return [x]
