"""Detection of code that was replaced in memory, for example by a notebook.

Packages record functions, classes, methods, upper-case constants and table entries after import. Results are stored
only while all are unchanged.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

Place = tuple[str, str]
"""Module or class, and a name in it."""
_noted: dict[Place, Any] = {}


def note_code(*packages: str) -> None:
    _noted.update(_code_of(packages))


def patched_code(*packages: str) -> list[str]:
    """Return the names of replaced or deleted objects in packages or modules."""
    modules = {module for module, _ in _noted}
    modules = {module for module in modules if _is_in(module, packages)}
    current, missing = _code_of(packages, modules), object()
    changed = {place for place in _noted if place[0] in modules and current.get(place, missing) is not _noted[place]}
    changed |= {place for place in current.keys() - _noted.keys() if place[1].endswith("]")}
    return sorted(".".join(place) for place in changed)


def _code_of(packages: tuple[str, ...], wanted: set[str] | None = None) -> dict[Place, Any]:
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
    owner = f"{kind.__module__}.{kind.__qualname__}"
    if wanted is None or owner in wanted:
        for name, value in list(vars(kind).items()):
            if _is_code(name, value):
                yield (owner, name), value


def _is_in(name: str, packages: tuple[str, ...]) -> bool:
    return name in packages or name.startswith(tuple([f"{package}." for package in packages]))


def _is_code(name: str, value: Any) -> bool:
    if isinstance(value, ModuleType) or (name.startswith("__") and name != "__call__"):
        return False
    return callable(value) or isinstance(value, property | classmethod | staticmethod) or name.isupper()
