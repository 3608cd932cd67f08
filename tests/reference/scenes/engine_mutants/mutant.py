"""Engine mutants: a host-side fault of a run, and the check that finds it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

Fault = Callable[[pytest.MonkeyPatch], None]
"""Puts the fault in, until the patch is undone."""


def replaced(owner: Any, name: str) -> Callable[[Callable[..., Any]], Fault]:
    """Return a decorator that makes a fault of `body(right, *arguments)`: it is called in the place of `right`.

    Args:
        owner: class or module of the replaced function.
        name: of the function in `owner`.
    """

    def fault_of(body: Callable[..., Any]) -> Fault:
        def put_in(patch: pytest.MonkeyPatch) -> None:
            right = getattr(owner, name)
            patch.setattr(owner, name, lambda *arguments, **options: body(right, *arguments, **options))

        return put_in

    return fault_of


class Finder(StrEnum):
    """The check that must find a mutant in the traffic."""

    OWNER = "owner of the rows"
    SANITIZER = "sanitizer"
    ALONE = "comparison with the requests alone"
    LABEL = "label of the states"
    KERNEL = "check of the rows in a kernel"
    ARRAYS = "comparison of host arrays with what they held"
    REPLAY = "replay of the accepted tokens one at a time"
    PROOF = "proof"
    MEASURED = "measurement of the committed state"
    REFERENCE = "comparison with the recurrence token by token"


@dataclass(frozen=True)
class EngineMutant:
    """A fault of the engine.

    Attributes:
        id: unique among engine mutants.
        source: a public report of a bug of the kind, as project#number.
        description: the fault, in one line.
        finder: who must find it.
        fault: puts it in.
    """

    id: str
    source: str
    description: str
    finder: Finder
    fault: Fault
