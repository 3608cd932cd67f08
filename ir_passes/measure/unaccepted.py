"""Measured reach of unaccepted tokens of a verifying step into its rows.

The proof does not follow positions within a lane. A second run has other tokens after the accepted ones. Different rows
show a reach of unaccepted tokens; equal rows prove nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ir_passes.contract.contract import BoundContract, ContractFault, Lane, LaneContract
from ir_passes.jaxpr.dtypes import dtype_of, is_key, to_numpy
from ir_passes.measure.dependence import lane_bytes


@dataclass(frozen=True)
class Unaccepted:
    """Measured reach of unaccepted tokens.

    Attributes:
        reached: a line per changed array and lane; empty for a correct step.
        compared: number of compared lanes.
    """

    reached: tuple[str, ...]
    compared: int


def unaccepted_reach(
    step: Callable[..., tuple[Any, ...]],
    args: tuple[Any, ...],
    contract: LaneContract,
    tokens: Mapping[str, int],
    by_position: Callable[[str], bool] | None = None,
    rounds: int = 8,
    seed: int = 0,
) -> Unaccepted:
    """Change the tokens after the accepted ones in every lane, and compare the rows.

    Tokens after the first rejected one must change nothing, not even the count. A replaced first rejected token may be
    accepted by chance; such lanes are not compared.

    Args:
        step: is compiled; one output is `Lane(role="accepted")`.
        args: arrays with some wrong drafts; replacements come from the same array.
        tokens: path of each argument with an entry per token, as "args[2]" -> token axis.
        by_position: predicate of paths of pools with later entries that are never read; None for pools with a dimension
            "position".
        rounds: pairs of runs.

    Raises:
        ContractError: no such output, or an argument of `tokens` that is no array of lanes.
    """
    bound = contract.bind(step, args)
    counts = [
        k
        for k, bound_output in enumerate(bound.outputs)
        if isinstance(bound_output.entry, Lane) and bound_output.entry.role == "accepted"
    ]
    if len(counts) != 1:
        raise ContractFault.ACCEPTED.error(
            "", f"expected one output that is Lane(role='accepted'), the contract has {len(counts)}"
        )
    places = _places(bound, tokens)
    pools = [k for k in bound.successors.values() if not (by_position or _with_positions(bound))(bound.outputs[k].path)]
    leaves, tree = jax.tree.flatten(args)
    leaves = [leaf if is_key(dtype_of(leaf)) else np.asarray(leaf) for leaf in leaves]
    jitted = jax.jit(step)

    def run(changed: list[Any]) -> list[np.ndarray]:
        return [to_numpy(leaf) for leaf in jax.tree.leaves(jitted(*jax.tree.unflatten(tree, changed)))]

    reference = run(leaves)
    accepted = reference[counts[0]]
    rng = np.random.default_rng(seed)
    reached: dict[str, None] = {}
    compared = 0
    for _ in range(rounds):
        for skipped in (0, 1):
            changed, lanes = _changed(leaves, places, accepted + skipped, rng)
            results = run(changed)
            unchanged = results[counts[0]] == accepted
            for lane in np.flatnonzero(lanes & ~unchanged).tolist() if skipped else ():
                reached[
                    f"lane {lane}: the count of accepted tokens is {accepted[lane]} or {results[counts[0]][lane]}"
                ] = None
            for lane in np.flatnonzero(lanes & unchanged).tolist():
                compared += 1
                for k in pools:
                    pool = bound.outputs[k]
                    was, now = (lane_bytes(bound, leaves, pool, arrays[k], lane) for arrays in (reference, results))
                    if was != now:
                        reached[f"lane {lane}: {pool.path}, {accepted[lane]} tokens accepted"] = None
    return Unaccepted(tuple(reached), compared)


def _places(bound: BoundContract, tokens: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """Return argument index -> (lane axis, token axis)."""
    lane_axes = {
        bound_input.path: (i, bound_input.entry.axis)
        for i, bound_input in enumerate(bound.inputs)
        if isinstance(bound_input.entry, Lane)
    }
    for path, axis in tokens.items():
        if (
            path not in lane_axes
            or not 0 <= axis < len(bound.inputs[lane_axes[path][0]].shape)
            or axis == lane_axes[path][1]
        ):
            paths = ", ".join(lane_axes)
            raise ContractFault.TOKENS.error(
                path, f"expected an array of the lanes with tokens along axis {axis}; there are {paths}"
            )
    return {lane_axes[path][0]: (lane_axes[path][1], axis) for path, axis in tokens.items()}


def _with_positions(bound: BoundContract) -> Callable[[str], bool]:
    entries = {bound_output.path: bound_output.entry for bound_output in bound.outputs}
    return lambda path: "position" in (getattr(entries[path], "dims", None) or ())


def _changed(
    leaves: list[Any], places: dict[int, tuple[int, int]], begin: np.ndarray, rng: np.random.Generator
) -> tuple[list[Any], np.ndarray]:
    """Return arguments with other tokens from `begin` on, and a mask of changed lanes."""
    new = list(leaves)
    lanes = np.zeros(len(begin), bool)
    for i, (lane_axis, token_axis) in places.items():
        array = np.moveaxis(leaves[i], (lane_axis, token_axis), (0, 1))
        count = array.shape[1]
        lane, token = rng.integers(0, len(begin), (len(begin), count)), rng.integers(0, count, (len(begin), count))
        replaced = np.arange(count) >= begin[:, None]
        mixed = np.where(replaced.reshape(*replaced.shape, *[1] * (array.ndim - 2)), array[lane, token], array)
        lanes |= np.any(mixed != array, axis=tuple(range(1, array.ndim)))
        new[i] = np.moveaxis(mixed, (0, 1), (lane_axis, token_axis))
    return new, lanes
