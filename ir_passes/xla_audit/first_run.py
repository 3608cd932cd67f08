"""The first call of a compiled step: whether each pool's successor lies where the pool lay."""

from collections.abc import Callable
from typing import Any

import jax

from ir_passes.contract.contract import BoundContract
from ir_passes.xla_audit.findings import Finding, FindingKind
from ir_passes.xla_audit.hlo import addresses


class FirstRun:
    """A callable that calls a step once and reports which of its pools moved.

    Args:
        entry: the step.
        bound: its contract.
        done: takes the findings, once the call is over.
    """

    def __init__(self, entry: Callable[..., Any], bound: BoundContract, done: Callable[[tuple[Finding, ...]], None]):
        self._entry, self._bound, self._done = entry, bound, done

    def __call__(self, *args: Any) -> Any:
        pools = self._addresses(jax.tree.leaves(args))
        results = self._entry(*args)
        leaves = jax.tree.leaves(results)
        findings = []
        for donor, before in pools.items():
            successor = self._bound.successors[donor]
            if addresses(leaves[successor]) != before:
                path, old = self._bound.outputs[successor].path, self._bound.inputs[donor].path
                findings.append(
                    Finding(
                        FindingKind.NOT_IN_PLACE,
                        path,
                        f"{path} has bytes of its own after the first call; expected those of {old}",
                        f"Pass {old} as an array that nothing else refers to: while a NumPy view of it is alive, JAX "
                        "copies it in silence.",
                    )
                )
        self._done(tuple(findings))
        return results

    def _addresses(self, leaves: list[Any]) -> dict[int, tuple[tuple[int, ...], ...]]:
        """Return the addresses of every donated array on a device; those on the host must be brought there first."""
        return {
            i: addresses(leaves[i])
            for i in self._bound.successors
            if isinstance(leaves[i], jax.Array) and leaves[i].size
        }
