"""Contract of a step: the owner of each argument and result.

A step computes N lanes at once. An owner is: all lanes, each lane, or a pool of per-sequence rows. `bind` checks that a
contract fits a function; the proof and the tests show that it holds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ir_passes.contract import fault_texts
from ir_passes.contract.entries import (
    Bound,
    ComputedGrid,
    Lane,
    Opaque,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    Unspecified,
)
from ir_passes.contract.entry_checks import check_entries, check_names, check_opaque
from ir_passes.contract.faults import ContractError, ContractFault
from ir_passes.contract.layouts import check_layouts
from ir_passes.contract.missing_entries import check_complete
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
        grids: declared grids of kernels by name.
    """

    lanes: int
    inputs: tuple[Bound, ...]
    outputs: tuple[Bound, ...]
    successors: dict[int, int]
    opaque: Mapping[str, Opaque] = field(default_factory=dict)
    grids: Mapping[str, ComputedGrid] = field(default_factory=dict)

    @cached_property
    def mapped(self) -> frozenset[str]:
        """Groups of pools with a slot map or page table."""
        return frozenset(name for bound in self.inputs for name in getattr(bound.entry, "names", ()))

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
            "target(name=value)" with the attributes of a custom call, "format at file:line" of the print. A kernel
            with a `ComputedGrid` is read.
        keywords: entries of keyword-only arguments, by name.
    """

    inputs: Any
    outputs: Any
    opaque: Mapping[str, Opaque | ComputedGrid] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> BoundContract:
        """Assign entries to the arrays of `fn(*args)`, by a trace; `args` may be `jax.ShapeDtypeStruct`.

        A missing or unfit entry raises ContractError with its pytree path.
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
        check_entries(inputs, outputs)
        lanes = _count_lanes(inputs, outputs)
        _check_roles(inputs, outputs, lanes)
        check_layouts(inputs, outputs, lanes)
        mapped = _check_row_maps(inputs)
        for bound in (*inputs, *outputs):
            _check_pool(bound, lanes, mapped)
        grids = {name: entry for name, entry in self.opaque.items() if isinstance(entry, ComputedGrid)}
        opaque = {name: entry for name, entry in self.opaque.items() if isinstance(entry, Opaque)}
        return BoundContract(lanes, inputs, outputs, _pair_pools(inputs, outputs), opaque, grids)


def _bind(where: str, entries: Any, value: Any) -> Iterator[Bound]:
    for name, entry, leaf in spread(entries, value, where):
        shape = np.shape(leaf)
        dtype = dtype_of(leaf)
        if isinstance(entry, Lane | Packed | Pool) and not 0 <= entry.axis < len(shape):
            raise ContractFault.AXIS.error(name, f"{entry} needs axis {entry.axis}, the array has shape {shape}")
        yield Bound(name, entry, shape, dtype)


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
        raise ContractFault.NO_LANES.error("", fault_texts.NO_LANES)
    if len(set(sizes.values())) > 1:
        raise ContractFault.LANES.error("", fault_texts.other_lengths(sizes, bool(cu_seqlens)))
    return next(iter(sizes.values()))


def _check_roles(inputs: tuple[Bound, ...], outputs: tuple[Bound, ...], lanes: int) -> None:
    for role in ("length", "active", "active_count"):
        paths = [bound.path for bound in inputs if getattr(bound.entry, "role", None) == role]
        if len(paths) > 1:
            raise ContractFault.ROLE.error(paths[1], fault_texts.ONE_ROLE.format(paths=", ".join(paths), role=role))
    for bound in inputs:
        rows = bound.shape[0] if bound.shape else 0
        if getattr(bound.entry, "packed", False) and rows and bound.dtype == np.int32:
            continue
        if isinstance(bound.entry, PageTable) and (rows == 0 or rows % lanes or bound.dtype != np.int32):
            raise ContractFault.ARRAY.error(bound.path, fault_texts.other_array(bound, lanes, np.dtype(np.int32)))
    for bound in (*inputs, *outputs):
        role = getattr(bound.entry, "role", None)
        if role is None or isinstance(bound.entry, Packed | PageTable):
            continue
        shape = () if isinstance(bound.entry, Shared) else (lanes,)
        dtype = np.dtype(np.bool_ if role == "active" else np.int32)
        if (bound.shape, bound.dtype) != (shape, dtype):
            raise ContractFault.ARRAY.error(bound.path, fault_texts.other_array(bound, lanes, dtype, shape))


def _check_row_maps(inputs: tuple[Bound, ...]) -> set[str]:
    mapped: dict[str, type] = {}
    for bound in inputs:
        if not isinstance(bound.entry, SlotMap | PageTable):
            continue
        for name in bound.entry.names:
            if mapped.setdefault(name, type(bound.entry)) is not type(bound.entry):
                raise ContractFault.MAPS.error(bound.path, fault_texts.TWO_KINDS.format(name=name))
    for name in mapped:
        maps = [(bound.path, bound.entry) for bound in inputs if isinstance(bound.entry, SlotMap)]
        maps = [(path, entry) for path, entry in maps if name in entry.names]
        writers = [path for path, entry in maps if entry.role != "read" and not entry.disjoint]
        if len(writers) > 1:
            raise ContractFault.MAPS.error(writers[1], fault_texts.two_writers(name, writers))
    return {*mapped}


def _check_pool(bound: Bound, lanes: int, mapped: set[str]) -> None:
    pool = bound.entry
    if not isinstance(pool, Pool):
        return
    if pool.group not in mapped and bound.shape[pool.axis] != lanes:
        raise ContractFault.ROWS.error(bound.path, fault_texts.NO_MAP.format(pool=pool, lanes=lanes, shape=bound.shape))


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
            raise ContractFault.SUCCESSOR.error(f"group {group!r}", fault_texts.few_pools(indices, donors))
        for donor, successor in zip(donors, indices, strict=False):
            old, new = inputs[donor], outputs[successor]
            if (old.shape, old.dtype, old.entry) != (new.shape, new.dtype, new.entry):
                raise ContractFault.SUCCESSOR.error(new.path, fault_texts.OTHER_SUCCESSOR.format(old=old, new=new))
            pairs[donor] = successor
    return pairs
