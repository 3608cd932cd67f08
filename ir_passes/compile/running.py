"""Calls of a step: the first one looks whether its pools stay where they are, later ones are those of XLA's program."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from ir_passes.compile.proving import warn
from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr.forked import ForkedProcessError, Process
from ir_passes.xla_audit.findings import AuditError, Finding, FindingKind
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


class Running:
    """A step that can be called as the function it was made from. Its pools that have successors are consumed.

    Args:
        entry: what to call with the function's arguments.
        successors: which result takes the bytes of which argument.
        certify: whether pools that moved raise, warn or are not looked at.
    """

    def __init__(self, entry: Callable[..., Any], successors: tuple[Successor, ...], certify: str):
        self.successors, self._certify = successors, certify
        self._entry = entry
        self._run = self._first_run if certify != "off" and successors else entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if Process.forked:
            raise ForkedProcessError("a compiled step")
        return self._run(*args, **kwargs)

    def _first_run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the step and report which of its pools moved; from then on nothing stands before XLA's program."""
        given = jax.tree.leaves((args, kwargs))
        # those on the host must be brought to a device first
        pools = {
            one.donor: addresses(given[one.donor])
            for one in self.successors
            if isinstance(given[one.donor], jax.Array) and given[one.donor].size
        }
        results = self._entry(*args, **kwargs)
        self._run, made = self._entry, jax.tree.leaves(results)
        moved = (one for one in self.successors if one.donor in pools)
        findings = tuple(_moved(one) for one in moved if addresses(made[one.result]) != pools[one.donor])
        if findings and self._certify == "error":
            raise AuditError(findings)
        warn([finding.statement for finding in findings])
        return results


def _moved(one: Successor) -> Finding:
    return Finding(
        FindingKind.NOT_IN_PLACE,
        one.new,
        f"{one.new} has bytes of its own after the first call; expected those of {one.old}",
        f"Pass {one.old} as an array that nothing else refers to: while a NumPy view of it is alive, JAX copies it in "
        "silence.",
    )
