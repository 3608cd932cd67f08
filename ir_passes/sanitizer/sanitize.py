"""A step with a shadow label per pool row: writer, position, layout and epoch.

Indices that move the state also move its labels, and every use of a row compares them. This checks properties beyond
any proof: the host's slot map, positions and snapshots belong to the intended sequences.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.contract import Bound, BoundContract, Lane, LaneContract, PageTable, Pool, SlotMap
from ir_passes.contract.entries import ROW_MAPS
from ir_passes.contract.entry_checks import null_maps
from ir_passes.contract.normal_form import row_major
from ir_passes.contract.statements import StatedError
from ir_passes.host.row_ledger import Expected, ReservedOwner, RowLedger
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.dtypes import dtype_of
from ir_passes.sanitizer.interpreter import Interpreter
from ir_passes.sanitizer.judge import Judge
from ir_passes.sanitizer.paged import check_layout, named_rows, token_lanes
from ir_passes.sanitizer.pools import settle
from ir_passes.sanitizer.tags import LABEL, Tags, along, computed, constant_row, nobody, numbered, rows_axis
from ir_passes.sanitizer.verdict import Check, LabelFault, UntrackedFault, Verdict, explain


class UntrackedError(StatedError, ValueError):
    """Pools cannot be followed; an `UntrackedFault` for each equation."""


class SanitizedStep:
    """A step that also checks the owners of its rows; made by `sanitize`.

    Attributes:
        pools: input indices of pools, in the order of shadow labels.
        checks: comparisons of labels.
    """

    def __init__(self, program: ir.ClosedJaxpr, bound: BoundContract, tree: Any, masked: frozenset[int]):
        self.bound, self.checks = bound, tuple[Check, ...]()
        self.pools = tuple(i for i, entry in enumerate(bound.inputs) if isinstance(entry.entry, Pool))
        self._program, self._tree, self._masked = program, tree, masked

    @property
    def shadow_label_bytes(self) -> int:
        """Bytes of all shadow labels: 16 per row and pool."""
        return sum(16 * rows for rows in self._rows())

    def shadow_labels(self) -> tuple[Array, ...]:
        """Return the shadow labels of zeroed pools, int32 [rows, 4] each."""
        return tuple(jnp.zeros((rows, 4), jnp.int32) for rows in self._rows())

    def step(self, *args: Any, shadow_labels: tuple[Array, ...], expected: Expected) -> tuple[Any, ...]:
        """Return the step's results, new shadow labels and a `Verdict`; can be compiled.

        Args:
            shadow_labels: by pool.
            expected: from `RowLedger.expect`.

        Raises:
            ValueError: wrong shapes or dtypes.
        """
        values = jax.tree.leaves(args)
        self._check_shapes([*values, *shadow_labels, *expected])
        expected = Expected(*(jnp.asarray(labels) for labels in expected))
        named = named_rows(self.bound, values)
        paths, packed = {i: self.bound.inputs[i].path for i in self.pools}, any(self.bound.layouts.values())
        judge = Judge(expected, paths, self._masked, named, packed)
        outs, new = self._run(judge, values, shadow_labels)
        if judge.untracked:
            advice = "address pools by gather, scatter or dynamic slices at lanes' slots"
            raise UntrackedError(*judge.untracked, advice=advice)
        self.checks = tuple(judge.checks)
        return (*jax.tree.unflatten(self._tree, outs), new, judge.verdict)

    def require(self, verdict: Verdict, expected: Expected) -> None:
        """Wait for a step and raise the faults of its verdict.

        Raises:
            SanitizerError: per lane: row, check with source, expected and found label.
        """
        if (error := explain(verdict, expected, self.checks)) is not None:
            raise error

    def _rows(self) -> list[int]:
        entries = [(array.entry, array.shape) for array in self.bound.inputs]
        return [shape[entry.axis] for entry, shape in entries if isinstance(entry, Pool)]

    def _check_shapes(self, values: list[Any]) -> None:
        int32, lanes = np.dtype(np.int32), self.bound.lanes
        wanted = [(entry.path, entry.shape, entry.dtype) for entry in self.bound.inputs]
        wanted += [(f"shadow labels {i}", (rows, 4), int32) for i, rows in enumerate(self._rows())]
        wanted += [(f"expected {name}", (lanes, 4), int32) for name in Expected._fields]
        if len(values) != len(wanted):
            raise ValueError(f"expected {len(wanted)} arrays with shadow labels and expectations, got {len(values)}")
        faults = []
        for (path, shape, dtype), value in zip(wanted, values, strict=True):
            got = np.shape(value), dtype_of(value)
            if got != (shape, dtype):
                faults.append(f"{path}: expected {dtype}{list(shape)}, got {got[1]}{list(got[0])}")
        if faults:
            raise ValueError("; ".join(faults) + "; sanitize the step for these shapes")

    def _check_maps(self, judge: Judge, values: list[Any]) -> None:
        lanes = np.arange(self.bound.lanes, dtype=np.int32)
        label = ReservedOwner.COMPUTED
        for k, entry, other in _disjoint_maps(self.bound.inputs):
            rows = jnp.asarray(values[k])
            shared = (rows[:, None] == jnp.asarray(values[other])[None, :]).any(axis=1)
            path = self.bound.inputs[k].path
            action = f"has a row of {self.bound.inputs[other].path}, from which it is declared disjoint"
            wrong = shared & (rows != 0) if entry.null else shared
            judge.record(path, action, wrong, lanes, "lane", rows, label, LabelFault.NOT_DISJOINT)
        for k in null_maps(self.bound.inputs)[1:]:
            first = null_maps(self.bound.inputs)[0]
            path, rows = self.bound.inputs[k].path, jnp.asarray(values[k])
            action = f"is on the null row here, or in {self.bound.inputs[first].path}, and not in both"
            wrong = (rows == 0) != (jnp.asarray(values[first]) == 0)
            judge.record(path, action, wrong, lanes, "lane", rows, label, LabelFault.NULL_ROW)

    def _run(self, judge: Judge, values: list[Any], shadow_labels: tuple[Array, ...]) -> tuple[list[Any], tuple]:
        by_pool = dict(zip(self.pools, shadow_labels, strict=True))
        lanes = {layout: token_lanes(self.bound, values, layout) for layout in self.bound.layouts}
        check_layout(judge, self.bound, values)
        tags = [_input_tags(i, self.bound, by_pool.get(i), lanes) for i in range(len(self.bound.inputs))]
        self._check_maps(judge, values)
        outs, out_tags = Interpreter(judge, self.bound.opaque).run(self._program, values, tags)
        sources = {output: source for source, output in self.bound.successors.items()}
        for i, (entry, tag) in enumerate(zip(self.bound.outputs, out_tags, strict=True)):
            if i in sources:
                by_pool[sources[i]] = _output_shadow(judge, self.bound, i, sources[i], tag)
            elif tag is not None and tag.whole:
                judge.untracked.setdefault(UntrackedFault.RESULT.statement(entry.path))
            elif tag is not None and tag.pending:
                axis = entry.entry.axis if isinstance(entry.entry, Lane) else None
                reader = None if axis is None else along(judge.lanes, axis, len(entry.shape))
                judge.use(entry.path, tag, reader)
        return outs, tuple(by_pool[i] for i in self.pools)


def _disjoint_maps(inputs: tuple[Bound, ...]) -> Iterator[tuple[int, SlotMap, int]]:
    maps = [(k, bound_input.entry) for k, bound_input in enumerate(inputs) if isinstance(bound_input.entry, SlotMap)]
    for k, entry in maps:
        for other, other_entry in maps:
            if entry.disjoint and other != k and not set(entry.names).isdisjoint(other_entry.names):
                yield k, entry, other


def sanitize(
    fn: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract, *, masked: Collection[str] = ()
) -> SanitizedStep:
    """Trace `fn(*args)` with shadow labels for every pool of its contract.

    Args:
        args: arrays or `jax.ShapeDtypeStruct`.
        masked: paths of input pools, as "args[1].key", masked by position (KV caches): a beginning sequence may read
            stale contents there, and must read zeros from other pools.

    Raises:
        ContractError: the contract does not fit.
        UntrackedError: a pool cannot be followed.
        ValueError: a path in `masked` is no pool.
    """
    bound = contract.bind(fn, args)
    paths = {entry.path: i for i, entry in enumerate(bound.inputs) if isinstance(entry.entry, Pool)}
    if no_pools := sorted(set(masked) - set(paths)):
        raise ValueError(f"masked: {no_pools} are no pools of the step; pools: {sorted(paths)}")
    tree = jax.tree.structure(jax.eval_shape(fn, *args))
    step = SanitizedStep(row_major(ir.trace(fn, *args)), bound, tree, frozenset(paths[path] for path in masked))

    def check(args: tuple, shadow_labels: tuple, expected: Expected) -> Any:
        return step.step(*args, shadow_labels=shadow_labels, expected=expected)

    jax.eval_shape(check, args, step.shadow_labels(), RowLedger().expect([None] * bound.lanes))
    return step


def _input_tags(number: int, contract: BoundContract, shadow: Array | None, tokens: Mapping[str, Array]) -> Tags | None:
    entry, shape = contract.inputs[number].entry, contract.inputs[number].shape
    rank = len(shape)
    if isinstance(entry, Lane):
        return computed(along(shape[entry.axis], entry.axis, rank))
    if isinstance(entry, PageTable) and entry.packed:
        return computed(tokens[entry.layout].reshape((-1, *(1,) * (rank - 1))))
    if isinstance(entry, ROW_MAPS):
        return computed(along(shape[0], 0, rank) // (shape[0] // contract.lanes))
    if not isinstance(entry, Pool) or shadow is None:
        return None
    slots = along(shape[entry.axis], entry.axis, rank)
    complete = entry.group in contract.mapped
    lanes = nobody(rank) if complete else slots
    return Tags(lanes, numbered(slots, shadow.reshape((*slots.shape, 4))), (number,), complete, derived=True)


def _output_shadow(judge: Judge, contract: BoundContract, number: int, source: int, tag: Tags | None) -> Array:
    bound = contract.outputs[number]
    entry = bound.entry
    assert isinstance(entry, Pool)
    rows, rank = bound.shape[entry.axis], len(bound.shape)
    shape = tuple(rows if axis == entry.axis else 1 for axis in range(rank))
    mixed = jnp.broadcast_to(constant_row(ReservedOwner.MIXED, 1)[..., LABEL:], (rows, 4))
    if entry.group not in contract.mapped:
        lanes = along(rows, entry.axis, rank)
        return jnp.asarray(settle(judge, bound.path, tag, shape, lanes, lanes)[0]).reshape((rows, 4))
    if tag is None or not tag.whole or tag.pools != (source,) or rows_axis(tag) != entry.axis:
        fault = UntrackedFault.ONE_ROW if rows == 1 else UntrackedFault.SUCCESSOR
    elif tag.some_rows.shape[:-1] != shape and source not in judge.named:
        fault = UntrackedFault.PARTS
    elif tag.some_rows.shape[:-1] != shape:  # labels of pages written token by token mean nothing
        return mixed
    else:
        return jnp.asarray(tag.some_rows)[..., LABEL:].reshape((rows, 4))
    judge.untracked.setdefault(fault.statement(bound.path))
    return mixed
