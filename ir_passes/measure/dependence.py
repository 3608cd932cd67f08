"""Measured dependence between lanes: everything of one lane is changed, and the bits of all others are compared.

The proof covers all runs; this measures some. A difference between lanes that are proved independent is a fault of the
proof or of the machine code; no difference proves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ir_passes.contract.contract import (
    Bound,
    BoundContract,
    ContractFault,
    Lane,
    PageTable,
    Pool,
    SlotMap,
)
from ir_passes.jaxpr.dtypes import dtype_of, is_key, to_numpy


@dataclass(frozen=True)
class Dependence:
    """The measured dependence of lanes on lanes.

    Attributes:
        changed: [lane out][lane in], whether a result or a row of the first has changed with the second.
    """

    changed: tuple[tuple[bool, ...], ...]

    @property
    def crossings(self) -> tuple[tuple[int, int], ...]:
        """Pairs of different lanes of which the first has changed with the second."""
        return tuple((i, j) for i, row in enumerate(self.changed) for j, seen in enumerate(row) if seen and i != j)


def measured_dependence(
    run: Callable[..., Any], args: tuple[Any, ...], bound: BoundContract, seed: int = 0
) -> Dependence:
    """Run a step once as it is and once for each lane with other inputs and other rows of that lane.

    Numbers get noise, integers and the words of keys one more than they were; lengths and row numbers stay as they are.

    Args:
        run: the step, which may consume its pools.
        args: its arguments, arrays; no lane's length is zero, and integers can be one more.
        bound: its contract.
        seed: of the noise.
    """
    leaves, tree = jax.tree.flatten(args)

    def results(lane: int | None) -> list[np.ndarray]:
        rng = np.random.default_rng((seed, lane or 0))
        # what is donated is a copy of its own in each run
        given = [
            _other(one, leaf, None if lane is None else row_of_lane(bound, leaves, one, lane, "write"), rng)
            for one, leaf in zip(bound.inputs, leaves, strict=True)
        ]
        return [to_numpy(leaf) for leaf in jax.tree.leaves(run(*jax.tree.unflatten(tree, given)))]

    def parts(found: list[np.ndarray], lane: int) -> list[bytes]:
        pairs = zip(bound.outputs, found, strict=True)
        return [
            lane_bytes(bound, leaves, one, array, lane) for one, array in pairs if isinstance(one.entry, Lane | Pool)
        ]

    lanes = range(bound.lanes)
    before = results(None)
    was = [parts(before, lane) for lane in lanes]
    seen = []
    for changed in lanes:
        after = results(changed)
        seen.append([parts(after, lane) != was[lane] for lane in lanes])
    return Dependence(tuple(tuple(seen[j][i] for j in lanes) for i in lanes))


def lane_bytes(bound: BoundContract, leaves: list[Any], one: Bound, array: np.ndarray, lane: int) -> bytes:
    """Return the bytes of a lane's part of a result: its entry, or its rows in a pool."""
    assert isinstance(one.entry, Lane | Pool)
    return np.take(array, row_of_lane(bound, leaves, one, lane, "read"), axis=one.entry.axis).tobytes()


def row_of_lane(bound: BoundContract, leaves: list[Any], one: Bound, lane: int, not_role: str) -> int | list[int]:
    """Return a lane's index along the axis of its array: its row by the slot map, unless that has this role.

    For a pool behind page tables: all rows of the pages that only this lane names, without the null page.

    Raises:
        ValueError: the slot map counts rows within a device.
    """
    if isinstance(one.entry, Pool) and (own := _own_pages(bound, leaves, one.entry.group, lane)) is not None:
        return own
    for at, leaf in zip(bound.inputs, leaves, strict=True):
        if not isinstance(one.entry, Pool) or not isinstance(at.entry, SlotMap):
            continue
        if one.entry.group in at.entry.names and at.entry.role != not_role:
            if at.entry.local is not None:
                raise ValueError(
                    f"{at.path}: rows that a device counts are not followed; measure the step of one device"
                )
            return int(np.asarray(leaf)[lane])
    return lane


def _own_pages(bound: BoundContract, leaves: list[Any], group: str, lane: int) -> list[int] | None:
    """Rows of the pages of a group that a lane alone names; None where the group has no page table."""
    named: list[set[int]] = [set() for _ in range(bound.lanes)]
    null, tables = 0, 0
    for at, leaf in zip(bound.inputs, leaves, strict=True):
        entry = at.entry
        if isinstance(entry, PageTable) and group in entry.names:
            tables, null = tables + 1, max(null, entry.page_size if entry.null else 0)
            if entry.packed:
                raise ContractFault.NOT_MEASURED.error(
                    at.path, "dependence is measured of page tables of lanes, this one is packed"
                )
            for rows, pages in zip(named, np.asarray(leaf).reshape(bound.lanes, -1), strict=True):
                for page in pages[pages < entry.size].tolist():
                    rows.update(range(page * entry.page_size, (page + 1) * entry.page_size))
    others = set().union(*named[:lane], *named[lane + 1 :])
    return sorted(row for row in named[lane] - others if row >= null) if tables else None


def _other(one: Bound, leaf: Any, place: int | list[int] | None, rng: np.random.Generator) -> Any:
    """An argument with other numbers at one place, or as it is where its lane has none."""
    entry = one.entry
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
