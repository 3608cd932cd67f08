"""The first call of a compiled step: whether each pool's successor lies where the pool lay."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from ir_passes.contract.contract import BoundContract
from ir_passes.xla_audit.findings import Finding, FindingKind
from ir_passes.xla_audit.hlo import addresses


@dataclass(frozen=True)
class Successor:
    """A result that takes the bytes of an argument.

    Attributes:
        donor, result: numbers of the flattened argument and of the flattened result.
        old, new: their paths.
    """

    donor: int
    result: int
    old: str
    new: str


def successors_of(bound: BoundContract) -> tuple[Successor, ...]:
    """Return those of a contract, by argument."""
    pairs = sorted(bound.successors.items())
    return tuple(Successor(i, o, bound.inputs[i].path, bound.outputs[o].path) for i, o in pairs)


class FirstRun:
    """A callable that calls a step once and reports which of its pools moved.

    Args:
        entry: the step.
        successors: of its arguments.
        done: takes the findings, once the call is over.
    """

    def __init__(
        self, entry: Callable[..., Any], successors: tuple[Successor, ...], done: Callable[[tuple[Finding, ...]], None]
    ):
        self._entry, self._successors, self._done = entry, successors, done

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        pools = self._addresses(jax.tree.leaves((args, kwargs)))
        results = self._entry(*args, **kwargs)
        leaves = jax.tree.leaves(results)
        findings = []
        for one in self._successors:
            if one.donor in pools and addresses(leaves[one.result]) != pools[one.donor]:
                findings.append(
                    Finding(
                        FindingKind.NOT_IN_PLACE,
                        one.new,
                        f"{one.new} has bytes of its own after the first call; expected those of {one.old}",
                        f"Pass {one.old} as an array that nothing else refers to: while a NumPy view of it is alive, "
                        "JAX copies it in silence.",
                    )
                )
        self._done(tuple(findings))
        return results

    def _addresses(self, leaves: list[Any]) -> dict[int, tuple[tuple[int, ...], ...]]:
        """Return the addresses of every donated array on a device; those on the host must be brought there first."""
        return {
            one.donor: addresses(leaves[one.donor])
            for one in self._successors
            if isinstance(leaves[one.donor], jax.Array) and leaves[one.donor].size
        }
