"""Calls of a step: the first one looks whether its pools stay where they are, later ones are those of XLA's program."""

from collections.abc import Callable
from typing import Any

from ir_passes.compile.proving import warn
from ir_passes.xla_audit.findings import AuditError, Finding
from ir_passes.xla_audit.first_run import FirstRun, Successor


class Running:
    """A step that can be called as the function it was made from. Its pools that have successors are consumed.

    Args:
        entry: what to call with the function's arguments.
        successors: which result takes the bytes of which argument.
        certify: whether pools that moved raise, warn or are not looked at.
    """

    def __init__(self, entry: Callable[..., Any], successors: tuple[Successor, ...], certify: str):
        self.successors = successors
        self._run = self._entry = entry
        if certify != "off" and successors:
            self._run = FirstRun(entry, successors, self._ran)
        self._certify = certify

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def _ran(self, findings: tuple[Finding, ...]) -> None:
        """The first call is over and the pools were looked at; from now on nothing stands before XLA's program."""
        self._run = self._entry
        if findings and self._certify == "error":
            raise AuditError(findings)
        warn([finding.statement for finding in findings])
