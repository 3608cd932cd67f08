"""Whether the code in memory is the code on disk: what a notebook has patched is in no source file.

The functions, classes, methods and upper-case constants of the three packages are noted once when they are imported. A
compiled step is kept, and one that was kept is taken, only where they are still the same objects.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

PACKAGES = ("hybridlm", "models", "ir_passes")
Place = tuple[str, str]
"""A module or a class, and a name in it."""
_noted: dict[Place, Any] = {}


def note_code() -> None:
    """Note the code of the packages as they were imported."""
    _noted.update(_code_of())


def patched_code() -> list[str]:
    """Return the names that hold something else than when they were noted, or are gone."""
    now, missing = _code_of({where for where, _ in _noted}), object()
    changed = (place for place, value in _noted.items() if now.get(place, missing) is not value)
    return sorted(".".join(place) for place in changed)


def _code_of(wanted: set[str] | None = None) -> dict[Place, Any]:
    """Return what the code of the packages consists of.

    Args:
        wanted: modules and classes to look at; None for all that are imported.
    """
    found: dict[Place, Any] = {}
    for module in [one for name, one in list(sys.modules.items()) if name.partition(".")[0] in PACKAGES]:
        for name, value in list(vars(module).items()):
            if wanted is None or module.__name__ in wanted:
                if _is_code(name, value):
                    found[module.__name__, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found.update(_methods(value, wanted))
    return found


def _methods(kind: type, wanted: set[str] | None) -> Iterator[tuple[Place, Any]]:
    where = f"{kind.__module__}.{kind.__qualname__}"
    if wanted is None or where in wanted:
        for name, value in list(vars(kind).items()):
            if _is_code(name, value):
                yield (where, name), value


def _is_code(name: str, value: Any) -> bool:
    """Whether a name of a module or a class stands for code or a constant; modules are looked at themselves."""
    if isinstance(value, ModuleType) or (name.startswith("__") and name != "__call__"):
        return False
    return callable(value) or isinstance(value, property | classmethod | staticmethod) or name.isupper()
