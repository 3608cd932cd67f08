"""Calls of a compiled step."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from ir_passes.compile.proving import warn
from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr import refused
from ir_passes.xla_audit.findings import AuditError, Finding, FindingKind
from ir_passes.xla_audit.hlo import addresses

STATUS = re.compile("[A-Z][A-Z_]+: ")
"""Begin of XLA's error messages, such as INVALID_ARGUMENT."""


@dataclass(frozen=True)
class Successor:
    """A result in the bytes of an argument.

    Attributes:
        donor, result: numbers of flattened argument and result.
        old, new: their paths.
    """

    donor: int
    result: int
    old: str
    new: str


def successors_of(bound: BoundContract) -> tuple[Successor, ...]:
    pairs = sorted(bound.successors.items())
    return tuple(Successor(i, o, bound.inputs[i].path, bound.outputs[o].path) for i, o in pairs)


class Running:
    """A compiled step that consumes pools with successors.

    A call raises JaxRuntimeError if the device fails or a C++ kernel refuses its operands.

    Args:
        entry: callable with the function's arguments.
        certify: "error" raises on moved pools, "warn" warns; "off" does not check.
    """

    def __init__(self, entry: Callable[..., Any], successors: tuple[Successor, ...], certify: str):
        self.successors, self._certify = successors, certify
        self._entry = entry
        self._run = self._first_run if certify != "off" and successors else entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if refused.forked:
            raise refused.ForkedProcessError("a compiled step")
        try:
            return self._run(*args, **kwargs)
        except ValueError as error:
            # JAX's fast path, from the second call on, has another type for XLA's errors than the first call.
            if STATUS.match(str(error)) is None:
                raise
            raise jax.errors.JaxRuntimeError(str(error)) from error

    def _first_run(self, *args: Any, **kwargs: Any) -> Any:
        """Report moved pools of the first call; later calls run XLA's program directly."""
        leaves = jax.tree.leaves((args, kwargs))
        # pools on the host move to a device first
        pools = {
            successor.donor: addresses(leaves[successor.donor])
            for successor in self.successors
            if isinstance(leaves[successor.donor], jax.Array) and leaves[successor.donor].size
        }
        results = self._entry(*args, **kwargs)
        self._run, new_leaves = self._entry, jax.tree.leaves(results)
        moved = (successor for successor in self.successors if successor.donor in pools)
        findings = tuple(_moved(pool) for pool in moved if addresses(new_leaves[pool.result]) != pools[pool.donor])
        if findings and self._certify == "error":
            raise AuditError(findings)
        warn([finding.statement for finding in findings])
        return results


def _moved(successor: Successor) -> Finding:
    return Finding(
        FindingKind.NOT_IN_PLACE,
        successor.new,
        f"{successor.new} has new bytes after the first call; expected the bytes of {successor.old}",
        f"Pass {successor.old} as an array that nothing else refers to: while a NumPy view of it is alive, JAX copies "
        "it silently.",
    )
