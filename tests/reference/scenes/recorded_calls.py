"""Calls of functions inside the packages, recorded while they run."""

import pkgutil
from typing import Any, NamedTuple

import pytest


class Call(NamedTuple):
    """A call that returned."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


def record_calls(patch: pytest.MonkeyPatch, path: str) -> list[Call]:
    """Return a list that gets every call of a function, by its dotted path, e.g. "package.module.Class.method"."""
    owner, _, name = path.rpartition(".")
    place, calls = pkgutil.resolve_name(owner), list[Call]()
    function = getattr(place, name)

    def recorded(*args: Any, **options: Any) -> Any:
        calls.append(Call(args, options, function(*args, **options)))
        return calls[-1].result

    patch.setattr(place, name, recorded)
    return calls
