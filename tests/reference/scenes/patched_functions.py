"""Functions inside the packages, by their dotted paths: their calls recorded, or a fault put in their place."""

import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Call(NamedTuple):
    """A call that returned."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


def record_calls(patch: pytest.MonkeyPatch, path: str) -> list[Call]:
    """Return a list that gets every call of a function, e.g. "package.module.Class.method"."""
    calls = list[Call]()

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **options: Any) -> Any:
            calls.append(Call(args, options, function(*args, **options)))
            return calls[-1].result

        return recorded

    plant_fault(patch, path, recording)
    return calls


def plant_fault(patch: pytest.MonkeyPatch, path: str, faulty: Callable[[Any], Any]) -> None:
    """Replace a function by what `faulty` makes of it."""
    patch.setattr(path, faulty(pkgutil.resolve_name(path)))
