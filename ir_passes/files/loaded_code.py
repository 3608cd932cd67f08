"""Patches of code in memory, as a notebook makes them: no source file shows them.

The functions, classes, methods and upper-case constants of packages are noted after their import, with the entries of
tables such as the rules of the proof. Results are kept only while all of them are the same objects.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

Place = tuple[str, str]
"""A module or a class, and a name in it."""
_noted: dict[Place, Any] = {}


def note_code(*packages: str) -> None:
    """Note the code of packages after their import."""
    _noted.update(_code_of(packages))


def patched_code(*packages: str) -> list[str]:
    """Return the names in packages or modules with an object that was replaced or deleted."""
    places = {where for where, _ in _noted}
    places = {place for place in places if _is_in(place, packages)}
    now, missing = _code_of(packages, places), object()
    changed = {place for place in _noted if place[0] in places and now.get(place, missing) is not _noted[place]}
    changed |= {place for place in now.keys() - _noted.keys() if place[1].endswith("]")}
    return sorted(".".join(place) for place in changed)


def _code_of(packages: tuple[str, ...], wanted: set[str] | None = None) -> dict[Place, Any]:
    """Return the functions, classes, methods and constants of packages.

    Args:
        packages: names of packages or modules.
        wanted: modules and classes to look at; None for all that are imported.
    """
    code: dict[Place, Any] = {}
    for module in [module for name, module in list(sys.modules.items()) if _is_in(name, packages)]:
        for name, value in list(vars(module).items()):
            if wanted is None or module.__name__ in wanted:
                if _is_code(name, value):
                    code[module.__name__, name] = value
                if isinstance(value, dict) and name.isupper() and not name.startswith("_"):
                    code |= {(module.__name__, f"{name}[{key!r}]"): entry for key, entry in list(value.items())}
            if isinstance(value, type) and value.__module__ == module.__name__:
                code.update(_methods(value, wanted))
    return code


def _methods(kind: type, wanted: set[str] | None) -> Iterator[tuple[Place, Any]]:
    where = f"{kind.__module__}.{kind.__qualname__}"
    if wanted is None or where in wanted:
        for name, value in list(vars(kind).items()):
            if _is_code(name, value):
                yield (where, name), value


def _is_in(name: str, packages: tuple[str, ...]) -> bool:
    """Return True if a module or class is one of some packages or in one."""
    return name in packages or name.startswith(tuple([f"{package}." for package in packages]))


def _is_code(name: str, value: Any) -> bool:
    """Return True if a name of a module or class is code or a constant."""
    if isinstance(value, ModuleType) or (name.startswith("__") and name != "__call__"):
        return False
    return callable(value) or isinstance(value, property | classmethod | staticmethod) or name.isupper()
