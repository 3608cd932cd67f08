"""Leaks between a step's lanes, found by changing a lane and comparing bits."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from ir_passes import Lane, PageTable, Pool
from ir_passes.contract.contract import BoundContract


class Leak(NamedTuple):
    """Changing `source` of one lane changed `output` of another."""

    changed_lane: int
    source: str
    seen_lane: int
    output: str


class Influence(NamedTuple):
    """Findings.

    Attributes:
        leaks: influence from one lane on another.
        inert: pairs (lane, source) of changes without any effect, not even in the lane.
    """

    leaks: list[Leak]
    inert: list[tuple[int, str]]


Change = Callable[[str, np.ndarray, np.random.Generator], np.ndarray]


def rows_of(bound: BoundContract, leaves: list[Any], entry: Any, lane: int) -> list[int]:
    """Return a lane's indices along an entry's axis: its pages, or its number."""
    for table, leaf in zip(bound.inputs, leaves, strict=True):
        if isinstance(table.entry, PageTable) and isinstance(entry, Pool) and entry.group in table.entry.names:
            return [page for page in np.asarray(leaf)[lane].tolist() if page]
    return [lane]


def influence(
    run: Callable[..., Any],
    args: tuple[Any, ...],
    bound: BoundContract,
    change: Change,
    lanes: Iterable[int] | None = None,
) -> Influence:
    """Change a lane in one array, then in all; compare other lanes' bits.

    Args:
        run: the compiled step; it must not donate.
        args: its arguments.
        bound: its contract, bound to these arguments.
        change: (path, the lane's row, random numbers) -> another valid row.
        lanes: lanes to change; all where None.
    """
    leaves, tree = jax.tree.flatten(args)
    leaves = [np.asarray(leaf) for leaf in leaves]
    inputs = [i for i, b in enumerate(bound.inputs) if isinstance(b.entry, Lane | Pool)]
    base = [np.asarray(leaf) for leaf in jax.tree.leaves(run(*args))]
    influence = Influence([], [])
    for lane in range(bound.lanes) if lanes is None else lanes:
        for sources in [[i] for i in inputs] + [inputs]:
            changed = list(leaves)
            for i in sources:
                entry: Any = bound.inputs[i].entry
                axis, random = entry.axis, np.random.default_rng((lane, i))
                array = np.moveaxis(leaves[i].copy(), axis, 0)
                for row in rows_of(bound, leaves, entry, lane):
                    array[row] = change(bound.inputs[i].path, array[row], random)
                changed[i] = np.moveaxis(array, 0, axis)
            name = bound.inputs[sources[0]].path if len(sources) == 1 else "everything"
            got = [np.asarray(leaf) for leaf in jax.tree.leaves(run(*jax.tree.unflatten(tree, changed)))]
            reached = False
            for output, expected, numbers in zip(bound.outputs, base, got, strict=True):
                out: Any = output.entry
                for other in range(bound.lanes):
                    rows = rows_of(bound, leaves, out, other)
                    if expected.take(rows, out.axis).tobytes() != numbers.take(rows, out.axis).tobytes():
                        reached = reached or other == lane
                        if other != lane:
                            influence.leaks.append(Leak(lane, name, other, output.path))
            if not reached:
                influence.inert.append((lane, name))
    return influence
