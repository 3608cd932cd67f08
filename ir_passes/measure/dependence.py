"""Measured dependence between lanes: change one lane, and compare the bits of all others.

A difference between lanes that are proved independent is a fault of proof or machine code; equality proves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ir_passes.contract.contract import Bound, BoundContract, ContractFault, Lane, PageTable, Pool, SlotMap
from ir_passes.jaxpr.dtypes import dtype_of, is_key, to_numpy


@dataclass(frozen=True)
class Dependence:
    """Measured dependence of lanes on lanes.

    Attributes:
        changed: `[i][j]`: a result or row of lane i changed with lane j.
    """

    changed: tuple[tuple[bool, ...], ...]

    @property
    def crossings(self) -> tuple[tuple[int, int], ...]:
        """Pairs (i, j) of different lanes: i changed with j."""
        return tuple(
            (i, j) for i, row in enumerate(self.changed) for j, differs in enumerate(row) if differs and i != j
        )


def measured_dependence(
    run: Callable[..., Any], args: tuple[Any, ...], bound: BoundContract, seed: int = 0
) -> Dependence:
    """Run a step unchanged, and once per lane with changed inputs and rows.

    Floats get noise, integers and key words are increased by one; lengths and row numbers stay.

    Args:
        run: may consume its pools.
        args: arrays; lengths are positive, integers can be increased.
    """
    leaves, tree = jax.tree.flatten(args)

    def results(lane: int | None) -> list[np.ndarray]:
        rng = np.random.default_rng((seed, lane or 0))
        # each run gets a copy of donated arguments
        arguments = [
            _other(
                bound_input, leaf, None if lane is None else row_of_lane(bound, leaves, bound_input, lane, "write"), rng
            )
            for bound_input, leaf in zip(bound.inputs, leaves, strict=True)
        ]
        return [to_numpy(leaf) for leaf in jax.tree.leaves(run(*jax.tree.unflatten(tree, arguments)))]

    def parts(results_of_run: list[np.ndarray], lane: int) -> list[bytes]:
        pairs = zip(bound.outputs, results_of_run, strict=True)
        return [
            lane_bytes(bound, leaves, bound_output, array, lane)
            for bound_output, array in pairs
            if isinstance(bound_output.entry, Lane | Pool)
        ]

    lanes = range(bound.lanes)
    reference = results(None)
    was = [parts(reference, lane) for lane in lanes]
    changes = []
    for changed in lanes:
        results_of_lane = results(changed)
        changes.append([parts(results_of_lane, lane) != was[lane] for lane in lanes])
    return Dependence(tuple(tuple(changes[j][i] for j in lanes) for i in lanes))


def lane_bytes(bound: BoundContract, leaves: list[Any], bound_output: Bound, array: np.ndarray, lane: int) -> bytes:
    """Return the bytes of a lane's entry or pool rows in a result."""
    assert isinstance(bound_output.entry, Lane | Pool)
    return np.take(
        array, row_of_lane(bound, leaves, bound_output, lane, "read"), axis=bound_output.entry.axis
    ).tobytes()


def row_of_lane(
    bound: BoundContract, leaves: list[Any], bound_array: Bound, lane: int, not_role: str
) -> int | list[int]:
    """Return a lane's index along an array's axis: a slot map's row, or the lane.

    Role `not_role` is ignored. With page tables: all rows of pages that only this lane names, without the null page.

    Raises:
        ValueError: the slot map counts rows within a device.
    """
    if (
        isinstance(bound_array.entry, Pool)
        and (pages := _own_pages(bound, leaves, bound_array.entry.group, lane)) is not None
    ):
        return pages
    for bound_input, leaf in zip(bound.inputs, leaves, strict=True):
        if not isinstance(bound_array.entry, Pool) or not isinstance(bound_input.entry, SlotMap):
            continue
        if bound_array.entry.group in bound_input.entry.names and bound_input.entry.role != not_role:
            if bound_input.entry.local is not None:
                raise ValueError(
                    f"{bound_input.path}: rows that a device counts are not followed; measure the step of one device"
                )
            return int(np.asarray(leaf)[lane])
    return lane


def _own_pages(bound: BoundContract, leaves: list[Any], group: str, lane: int) -> list[int] | None:
    """Return the rows of pages that only this lane names; None without a page table."""
    named: list[set[int]] = [set() for _ in range(bound.lanes)]
    null, tables = 0, 0
    for bound_input, leaf in zip(bound.inputs, leaves, strict=True):
        entry = bound_input.entry
        if isinstance(entry, PageTable) and group in entry.names:
            tables, null = tables + 1, max(null, entry.page_size if entry.null else 0)
            if entry.packed:
                raise ContractFault.NOT_MEASURED.error(
                    bound_input.path, "dependence is measured of page tables of lanes, this one is packed"
                )
            for rows, pages in zip(named, np.asarray(leaf).reshape(bound.lanes, -1), strict=True):
                for page in pages[pages < entry.size].tolist():
                    rows.update(range(page * entry.page_size, (page + 1) * entry.page_size))
    other_rows = set().union(*named[:lane], *named[lane + 1 :])
    return sorted(row for row in named[lane] - other_rows if row >= null) if tables else None


def _other(bound_input: Bound, leaf: Any, place: int | list[int] | None, rng: np.random.Generator) -> Any:
    """Return an argument with other numbers at `place`, if any."""
    entry = bound_input.entry
    if isinstance(entry, Lane) and entry.role == "length" or not isinstance(entry, Lane | Pool):
        return leaf
    array = np.array(to_numpy(leaf))
    if place is not None:
        rows = np.moveaxis(array, entry.axis, 0)
        if jax.numpy.issubdtype(array.dtype, np.floating):
            rows[place] = rows[place] + rng.standard_normal(rows.shape[1:]).astype(array.dtype)
        elif array.dtype == np.bool_:
            rows[place] = ~rows[place]
        else:
            rows[place] = rows[place] + 1
    if is_key(dtype_of(leaf)):
        return jax.random.wrap_key_data(jax.numpy.array(array), impl=jax.random.key_impl(leaf))
    return jax.numpy.array(array)
