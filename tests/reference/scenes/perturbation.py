"""Lanes that a step lets into others, found by changing one lane at a time and comparing bits."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from ir_passes import Lane, Pool
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
        inert: (lane, source) whose change was seen nowhere, not even in its own lane.
    """

    leaks: list[Leak]
    inert: list[tuple[int, str]]


Change = Callable[[str, np.ndarray, np.random.Generator], np.ndarray]


def row(array: np.ndarray, axis: int, lane: int) -> bytes:
    return np.take(array, lane, axis=axis).tobytes()


def influence(
    run: Callable[..., Any],
    args: tuple[Any, ...],
    bound: BoundContract,
    change: Change,
    lanes: Iterable[int] | None = None,
) -> Influence:
    """Change one lane of one array, then of all arrays at once, and compare every other lane bit for bit.

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
                axis = bound.inputs[i].entry.axis  # type: ignore[union-attr]  # of a lane or a pool
                array = np.moveaxis(leaves[i].copy(), axis, 0)
                array[lane] = change(bound.inputs[i].path, array[lane], np.random.default_rng((lane, i)))
                changed[i] = np.moveaxis(array, 0, axis)
            name = bound.inputs[sources[0]].path if len(sources) == 1 else "everything"
            got = [np.asarray(leaf) for leaf in jax.tree.leaves(run(*jax.tree.unflatten(tree, changed)))]
            reached = False
            for output, original, result in zip(bound.outputs, base, got, strict=True):
                axis = output.entry.axis  # type: ignore[union-attr]  # of a lane or a pool
                for other in range(bound.lanes):
                    if row(original, axis, other) != row(result, axis, other):
                        reached = reached or other == lane
                        if other != lane:
                            influence.leaks.append(Leak(lane, name, other, output.path))
            if not reached:
                influence.inert.append((lane, name))
    return influence
