"""Rules that align dimensions of operands and results.

An operation without a rule aligns nothing; the write to a pool then reports an unnamed dimension.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from ir_passes.jaxpr.mesh import array_axes_of
from ir_passes.jaxpr.primitives import CUMULATIVE, DEVICE_SUMS, ELEMENTWISE, IDENTITIES, REDUCTIONS, SCATTERS
from ir_passes.proof.dims.classes import (
    Dimension,
    concatenated,
    fresh,
    met,
    part_of,
    reshape,
    runs_along,
    same,
    tie,
    unify,
)

Dims = tuple[Dimension, ...]
Rule = Callable[..., list[Dims]]
DIMENSION_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        DIMENSION_RULES.update(dict.fromkeys(names, function))
        return function

    return register


@_rule(*(ELEMENTWISE - {"select_n"}))
def _elementwise(eqn: Any, *operands: Dims) -> list[Dims]:
    shape = eqn.outvars[0].aval.shape
    result = []
    for axis, size in enumerate(shape):
        # scalars and axes of length 1 fit all dimensions
        varying = [dims[axis] for dims in operands if dims and dims[axis].size == size and not dims[axis].repeated]
        for other in varying[1:]:
            unify(varying[0], other)
        result.append(varying[0] if varying else Dimension(size, repeated=True))
    return [tuple(result) for _ in eqn.outvars]


@_rule("rev", *IDENTITIES)
def _identity(eqn: Any, *operands: Dims) -> list[Dims]:
    return list(operands)


@_rule("sort")
def _sorted(eqn: Any, *operands: Dims) -> list[Dims]:
    """Keep dimensions; a sort along merged dimensions may exchange them."""
    along = int(eqn.params["dimension"])
    return [tuple(_indexed(dim) if axis == along else dim for axis, dim in enumerate(x)) for x in operands]


@_rule("bitcast_convert_type")
def _bits(eqn: Any, x: Dims) -> list[Dims]:
    """Add or drop the last dimension if the width of the dtype changes."""
    shape = eqn.outvars[0].aval.shape
    return [(*x, Dimension(shape[-1])) if len(shape) > len(x) else x[: len(shape)]]


@_rule("select_n")
def _select(eqn: Any, predicate: Dims, *cases: Dims) -> list[Dims]:
    result = [met(*dims) for dims in zip(*cases, strict=True)]
    for axis, mask in enumerate(predicate):
        if result[axis].repeated:
            result[axis] = mask
        elif all(same(case[axis], cases[0][axis]) or case[axis].repeated for case in cases):
            tie(mask, result[axis])
    return [tuple(result)]


@_rule(*CUMULATIVE)
def _running(eqn: Any, x: Dims) -> list[Dims]:
    along = int(eqn.params["axis"])
    return [tuple(_varying(dim) if axis == along else dim for axis, dim in enumerate(x))]


@_rule("reshape", "squeeze")
def _reshape(eqn: Any, x: Dims) -> list[Dims]:
    return [reshape(x, eqn.outvars[0].aval.shape)]


@_rule("broadcast_in_dim")
def _broadcast(eqn: Any, x: Dims, *_: Dims) -> list[Dims]:
    result = list(fresh(eqn.outvars[0].aval.shape))
    for dim, to in zip(x, map(int, eqn.params["broadcast_dimensions"]), strict=True):
        if dim.size == result[to].size:
            result[to] = dim
    targets = set(map(int, eqn.params["broadcast_dimensions"]))
    for axis, dim in enumerate(result):
        if axis not in targets or all(dim is not old for old in x):
            result[axis] = Dimension(dim.size, repeated=True)
    return [tuple(result)]


@_rule("transpose")
def _transpose(eqn: Any, x: Dims) -> list[Dims]:
    return [tuple(x[int(axis)] for axis in eqn.params["permutation"])]


@_rule(*REDUCTIONS)
def _reduce(eqn: Any, x: Dims) -> list[Dims]:
    reduced = {int(axis) for axis in eqn.params["axes"]}
    return [tuple(dim for axis, dim in enumerate(x) if axis not in reduced)]


@_rule("dot_general")
def _dot(eqn: Any, x: Dims, y: Dims) -> list[Dims]:
    (x_contract, y_contract), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    for a, b in (*zip(x_contract, y_contract, strict=True), *zip(x_batch, y_batch, strict=True)):
        tie(x[a], y[b])
    free = [dim for d, dim in enumerate(x) if d not in x_contract and d not in x_batch]
    free += [dim for d, dim in enumerate(y) if d not in y_contract and d not in y_batch]
    return [(*(y[b] if x[a].repeated else x[a] for a, b in zip(x_batch, y_batch, strict=True)), *free)]


@_rule("slice", "dynamic_slice", "split", "tile")
def _partial(eqn: Any, x: Dims, *starts: Dims) -> list[Dims]:
    """Keep dimensions of full length; return parts of the others."""
    contiguous = eqn.primitive.name != "tile" and all(step == 1 for step in eqn.params.get("strides") or ())
    return [
        tuple(
            old if old.size == new
            else part_of(old, new) if contiguous
            else Dimension(new, repeated=old.repeated)
            for old, new in zip(x, var.aval.shape, strict=True)
        )
        for var in eqn.outvars
    ]  # fmt: skip


@_rule("pad")
def _pad(eqn: Any, x: Dims, _: Dims) -> list[Dims]:
    sizes = eqn.outvars[0].aval.shape
    edges = eqn.params["padding_config"]
    return [tuple(old if not any(edge) else Dimension(new) for old, new, edge in zip(x, sizes, edges, strict=True))]


@_rule("concatenate")
def _concatenate(eqn: Any, *parts: Dims) -> list[Dims]:
    along = int(eqn.params["dimension"])
    size = eqn.outvars[0].aval.shape[along]
    columns = enumerate(zip(*parts, strict=True))
    return [tuple(concatenated(dims, size) if axis == along else met(*dims) for axis, dims in columns)]


@_rule("or_old")
def _stored(eqn: Any, *contents: Dims) -> list[Dims]:
    return [tuple(met(*dims) for dims in zip(*contents, strict=True))]


@_rule("stack")
def _stack(eqn: Any, *parts: Dims) -> list[Dims]:
    axis = int(eqn.params["axis"])
    result = [met(*dims) for dims in zip(*parts, strict=True)]
    return [(*result[:axis], Dimension(len(parts)), *result[axis:])]


@_rule(*DEVICE_SUMS, "pmax", "pmin")
def _reduced_over_devices(eqn: Any, *operands: Dims) -> list[Dims]:
    reduced = array_axes_of(eqn)
    return [tuple(dim for axis, dim in enumerate(x) if axis not in reduced) for x in operands]


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
    paired = {int(i): x[int(d)] for d, i in zip(n.operand_batching_dims, n.start_indices_batching_dims, strict=True)}
    for axis, new in enumerate(batch):
        other = paired.get(axis, indices[axis])
        tie(other, indices[axis])
        result[new] = other if indices[axis].repeated else indices[axis]
    return [tuple(result)]


def window_of_scatter(eqn: Any, x: Dims, indices: Dims, updates: Dims) -> dict[int, Dimension]:
    """Return the updates' dimensions along axes that an index does not collapse."""
    n = eqn.params["dimension_numbers"]
    hidden = {*map(int, n.inserted_window_dims), *map(int, n.operand_batching_dims)}
    for old, axis in zip(n.operand_batching_dims, n.scatter_indices_batching_dims, strict=True):
        tie(x[int(old)], indices[int(axis)])
    window = zip((d for d in range(len(x)) if d not in hidden), map(int, n.update_window_dims), strict=True)
    return {old: updates[new] for old, new in window}


def exchanged_by_index(eqn: Any, x: Dims, updates: Dims, row_names: AbstractSet[str]) -> set[int]:
    """Return indexed axes of a scatter's operand if indices may exchange its dimensions.

    Args:
        row_names: names of pools' rows, which the proof of lanes follows.
    """
    n = eqn.params["dimension_numbers"]
    indexed = [axis for axis in map(int, n.inserted_window_dims) if runs_along(x[axis]) - row_names]
    state_names = frozenset[str]().union(*map(runs_along, x)) - row_names
    batch = [dim for axis, dim in enumerate(updates) if axis not in n.update_window_dims]
    batch = [dim for axis, dim in enumerate(batch) if axis not in n.scatter_indices_batching_dims]
    names = [runs_along(dim) for dim in batch if runs_along(dim) & state_names and not dim.repeated and dim.size > 1]
    is_in_order = len(indexed) == 1 and all(name == runs_along(x[indexed[0]]) for name in names)
    return set() if is_in_order or not names else set(indexed)


def _put(x: Dims, window: dict[int, Dimension]) -> list[Dims]:
    """Write an array into a part of another, at any start along the other axes.

    An index along an axis of merged dimensions may exchange them.
    """
    axes = {axis for axis, dim in window.items() if dim.size == x[axis].size}
    return [tuple(met(dim, window[axis]) if axis in axes else _indexed(dim) for axis, dim in enumerate(x))]


def _indexed(dim: Dimension) -> Dimension:
    merged = dim.root().factors and dim.root().name is None
    return Dimension(dim.size, lost="") if merged else _varying(dim)


@_rule(*SCATTERS)
def _scatter(eqn: Any, x: Dims, indices: Dims, updates: Dims) -> list[Dims]:
    return _put(x, window_of_scatter(eqn, x, indices, updates))


@_rule("dynamic_update_slice")
def _update(eqn: Any, x: Dims, new: Dims, *starts: Dims) -> list[Dims]:
    return _put(x, dict(enumerate(new)))


def _varying(dim: Dimension) -> Dimension:
    return Dimension(dim.size) if dim.repeated else dim
