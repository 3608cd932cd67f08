"""Contract of a step: the owner of each argument and result.

A step computes N lanes at once. An owner is: all lanes, each lane, or a pool of per-sequence rows. `bind` checks that a
contract fits a function; the proof and the tests show that it holds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ir_passes.contract.entries import (
    ROW_MAPS,
    Bound,
    Lane,
    Opaque,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    Unspecified,
    check_role,
)
from ir_passes.contract.faults import ContractError, ContractFault
from ir_passes.contract.layouts import check_layouts
from ir_passes.contract.missing_entries import check_complete
from ir_passes.contract.opaque import check_opaque
from ir_passes.contract.opaque_names import check_names
from ir_passes.contract.prefix import by_argument, spread
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.dtypes import dtype_of, is_integer
from ir_passes.jaxpr.tracing import Trace, trace_function


@dataclass(frozen=True)
class BoundContract:
    """A contract with an entry for each flattened argument and result.

    Attributes:
        successors: index of an input pool -> index of its successor among the outputs.
        opaque: declared operations by name.
    """

    lanes: int
    inputs: tuple[Bound, ...]
    outputs: tuple[Bound, ...]
    successors: dict[int, int]
    opaque: Mapping[str, Opaque] = field(default_factory=dict)

    @property
    def null_maps(self) -> list[int]:
        """Indices of the slot maps that put idle lanes on the null row."""
        maps = [(k, array.entry) for k, array in enumerate(self.inputs) if isinstance(array.entry, SlotMap)]
        return [k for k, entry in maps if entry.null and not entry.disjoint]

    @property
    def layouts(self) -> dict[str, int | None]:
        """Layout -> number of packed tokens; None without an array of tokens."""
        layouts: dict[str, int | None] = {}
        for bound in (*self.inputs, *self.outputs):
            if bound.layout is not None:
                layouts[bound.layout] = layouts.get(bound.layout) or bound.tokens
        return layouts


@dataclass(frozen=True)
class LaneContract:
    """Entries for the arguments and results of a step, as pytree prefixes.

    An entry applies to every array below it, like the specs of `jax.shard_map`. An argument passed by name has the
    entry of its position; static arguments have no entry.

    Attributes:
        inputs: a tuple with entries for each positional argument, or one entry for all; None is `Unspecified`.
        outputs: entries for the results.
        opaque: declarations of custom calls, kernels and callbacks, by the name of their function or target, or the
            format of a print. For an ambiguous name: "name at file:line" of the function's definition,
            "target(name=value)" with the attributes of a custom call, "format at file:line" of the print.
        keywords: entries of keyword-only arguments, by name.
    """

    inputs: Any
    outputs: Any
    opaque: Mapping[str, Opaque] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> BoundContract:
        """Assign entries to the arrays of `fn(*args)`, by a trace; `args` may be `jax.ShapeDtypeStruct`.

        Raises:
            ContractError: an entry is missing or does not fit; the message names the pytree path.
        """
        return self.bind_trace(trace_function(fn, args))

    def bind_trace(self, trace: Trace) -> BoundContract:
        """Assign entries to the arrays of a traced function; raises like `bind`."""
        for name, declaration in self.opaque.items():
            check_opaque(name, declaration)
        check_names(self.opaque, trace.program)
        results = trace.results
        if type(self.outputs) is tuple and isinstance(results, tuple):
            results = tuple(results)  # a plain tuple of entries fits a named tuple
        arguments = tuple(by_argument(self.inputs, self.keywords, trace.args, trace.kwargs, trace.parameters))
        check_complete(arguments, self.outputs, results, trace.parameters)
        bound = (array for where, entries, value in arguments for array in _bind(where, entries, value))
        # JAX traces 64-bit NumPy arrays as 32-bit arrays unless `jax_enable_x64` is on
        dtypes = (ir.dtype_of(var) for var in trace.program.jaxpr.invars)
        inputs = tuple(replace(array, dtype=dtype) for array, dtype in zip(bound, dtypes, strict=True))
        outputs = tuple(_bind("result", self.outputs, results))
        lanes = _count_lanes(inputs, outputs)
        _check_roles(inputs, outputs, lanes)
        check_layouts(inputs, outputs, lanes)
        mapped = _check_row_maps(inputs, outputs, lanes)
        for bound in (*inputs, *outputs):
            _check_pool(bound, lanes, mapped)
        return BoundContract(lanes, inputs, outputs, _pair_pools(inputs, outputs), self.opaque)


def _bind(where: str, entries: Any, value: Any) -> Iterator[Bound]:
    for name, entry, leaf in spread(entries, value, where):
        shape = np.shape(leaf)
        dtype = dtype_of(leaf)
        if isinstance(entry, Lane | Packed | Pool) and not 0 <= entry.axis < len(shape):
            raise ContractFault.AXIS.error(name, f"{entry} needs axis {entry.axis}, the array has shape {shape}")
        check_role(name, entry)
        yield Bound(name, entry, shape, dtype)


_OF_TOKENS = (
    "an axis of the tokens of all lanes is Packed(), beside Packed(role='cu_seqlens') or Packed(role='segment_ids')"
)
_OF_RANKS = (
    "cu_seqlens has one entry more than there are lanes, and is one layout: of several data-parallel ranks each has a "
    "step of its own, with its tokens, lanes and rows"
)


def _count_lanes(inputs: tuple[Bound, ...], outputs: tuple[Bound, ...]) -> int:
    sizes = {
        bound.path: bound.shape[bound.entry.axis] for bound in (*inputs, *outputs) if isinstance(bound.entry, Lane)
    }
    sizes |= {bound.path: bound.shape[0] for bound in inputs if isinstance(bound.entry, SlotMap) and bound.shape}
    cu_seqlens = [bound for bound in inputs if getattr(bound.entry, "role", None) == "cu_seqlens"]
    sizes |= {bound.path: bound.shape[0] - 1 for bound in cu_seqlens}
    if not sizes:
        tables = [bound for bound in inputs if isinstance(bound.entry, PageTable) and not bound.entry.packed]
        sizes = {bound.path: bound.shape[0] for bound in tables if len(bound.shape) > 1}
    if not sizes:
        raise ContractFault.NO_LANES.error(
            "", "the number of lanes is unknown: declare at least one Lane, SlotMap, PageTable or cu_seqlens"
        )
    if len(set(sizes.values())) > 1:
        listing = ", ".join(f"{path}: {size}" for path, size in sizes.items())
        hint = _OF_RANKS if cu_seqlens else _OF_TOKENS
        raise ContractFault.LANES.error("", f"lane axes have different lengths: {listing}; {hint}")
    return next(iter(sizes.values()))


def _check_roles(inputs: tuple[Bound, ...], outputs: tuple[Bound, ...], lanes: int) -> None:
    for bound in outputs:
        if getattr(bound.entry, "role", None) in ("length", "active", "active_count"):
            message = "what says which lanes are idle is an input; what a step counts itself is Lane(role='accepted')"
            raise ContractFault.INPUT.error(bound.path, message)
    for role in ("length", "active", "active_count"):
        paths = [bound.path for bound in inputs if getattr(bound.entry, "role", None) == role]
        if len(paths) > 1:
            message = f"{', '.join(paths)} have the role {role!r}, expected one array that tells which lanes are idle"
            raise ContractFault.ROLE.error(paths[1], message)
    for bound in inputs:
        rows = bound.shape[0] if bound.shape else 0
        if getattr(bound.entry, "packed", False) and rows and bound.dtype == np.int32:
            continue
        if isinstance(bound.entry, PageTable) and (rows == 0 or rows % lanes or bound.dtype != np.int32):
            actual = f"got {bound.dtype}{bound.shape}{_conversion(bound, np.dtype(np.int32))}"
            raise ContractFault.ARRAY.error(bound.path, f"{bound.entry} needs int32[{lanes}, pages], {actual}")
    for bound in (*inputs, *outputs):
        role = getattr(bound.entry, "role", None)
        if role is None or isinstance(bound.entry, Packed | PageTable):
            continue
        shape = () if isinstance(bound.entry, Shared) else (lanes,)
        dtype = np.dtype(np.bool_ if role == "active" else np.int32)
        if (bound.shape, bound.dtype) != (shape, dtype):
            pages = isinstance(bound.entry, SlotMap) and len(bound.shape) > 1 and bound.shape[0] == lanes
            hint = "; several pages for each lane are a PageTable" if pages else _conversion(bound, dtype)
            raise ContractFault.ARRAY.error(
                bound.path, f"{bound.entry} needs {dtype}{list(shape)}, got {bound.dtype}{bound.shape}{hint}"
            )


def _conversion(bound: Bound, dtype: Any) -> str:
    """Return a remedy for an array of another integer type, else ""."""
    if bound.dtype == dtype or not is_integer(bound.dtype):
        return ""
    return f"; convert it on the host: np.asarray(x, np.{'bool_' if dtype == np.bool_ else dtype.name})"


def _check_row_maps(inputs: tuple[Bound, ...], outputs: tuple[Bound, ...], lanes: int) -> set[str]:
    groups = {bound.entry.group for bound in (*inputs, *outputs) if isinstance(bound.entry, Pool)}
    mapped: dict[str, type] = {}
    for bound in outputs:
        if isinstance(bound.entry, ROW_MAPS):
            raise ContractFault.INPUT.error(bound.path, f"a {type(bound.entry).__name__} is an input, never an output")
    for bound in inputs:
        if not isinstance(bound.entry, SlotMap | PageTable):
            continue
        for name in ("size", "page_size"):
            if (number := getattr(bound.entry, name, 1)) < 1:
                raise ContractFault.SIZE.error(bound.path, f"{name} must be at least 1, got {number}")
        for name in bound.entry.names:
            if name not in groups:
                listing = ", ".join(sorted(groups)) or "none"
                raise ContractFault.GROUP.error(bound.path, f"no pool belongs to group {name!r}; groups: {listing}")
            if mapped.setdefault(name, type(bound.entry)) is not type(bound.entry):
                message = "has a SlotMap and a PageTable; give the pools that have pages a group of their own"
                raise ContractFault.MAPS.error(bound.path, f"group {name!r} {message}")
    for name in mapped:
        maps = [(bound.path, bound.entry) for bound in inputs if isinstance(bound.entry, SlotMap)]
        maps = [(path, entry) for path, entry in maps if name in entry.names]
        writers = [path for path, entry in maps if entry.role != "read" and not entry.disjoint]
        if len(writers) > 1:
            message = f"rows of group {name!r} may be written by {' and by '.join(writers)}, which may name one row"
            remedy = "declare role='read' and role='write', or disjoint=True for all but one"
            raise ContractFault.MAPS.error(writers[1], f"{message}; {remedy}")
    return {*mapped}


def _check_pool(bound: Bound, lanes: int, mapped: set[str]) -> None:
    pool = bound.entry
    if not isinstance(pool, Pool):
        return
    if pool.dims is not None and len(pool.dims) != len(bound.shape):
        raise ContractFault.DIMS.error(bound.path, f"{len(pool.dims)} dims {pool.dims}, got shape {bound.shape}")
    if pool.group not in mapped and bound.shape[pool.axis] != lanes:
        raise ContractFault.ROWS.error(
            bound.path,
            f"group {pool.group!r} has no SlotMap, so it needs one row per lane along axis {pool.axis}: "
            f"expected {lanes}, got shape {bound.shape}; add a SlotMap or use a pool of {lanes} rows",
        )


def _pair_pools(inputs: tuple[Bound, ...], outputs: tuple[Bound, ...]) -> dict[int, int]:
    def by_group(side: tuple[Bound, ...]) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        for i, bound in enumerate(side):
            if isinstance(bound.entry, Pool):
                groups.setdefault(bound.entry.group, []).append(i)
        return groups

    input_groups, output_groups = by_group(inputs), by_group(outputs)
    pairs: dict[int, int] = {}
    for group, indices in output_groups.items():
        donors = input_groups.get(group, [])
        if len(indices) > len(donors):
            message = f"{len(indices)} output pools but only {len(donors)} input pools"
            raise ContractFault.SUCCESSOR.error(f"group {group!r}", message)
        for donor, successor in zip(donors, indices, strict=False):
            old, new = inputs[donor], outputs[successor]
            if (old.shape, old.dtype, old.entry) != (new.shape, new.dtype, new.entry):
                raise ContractFault.SUCCESSOR.error(
                    new.path,
                    f"it succeeds {old.path} but differs: expected {old.dtype}{old.shape} {old.entry}, "
                    f"got {new.dtype}{new.shape} {new.entry}",
                )
            pairs[donor] = successor
    return pairs
