"""Guard against packages of users named ``models`` or ``ir_passes``."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

SIBLINGS = ("ir_passes", "models")


def _foreign(name: str, path: str | None, expected: str, reason: str) -> ImportError:
    return ImportError(
        f"hybridlm needs its own top-level package {name!r} and found another one.\n"
        f"  found:    {path or 'nothing'}\n  expected: {expected}\n  reason:   {reason}\n"
        f"Any one of these helps: rename the file or folder that was found; start Python or Jupyter from another "
        f"directory; reinstall hybridlm in a fresh environment (python -m venv).",
        name=name,
        path=path,
    )


def require_siblings() -> None:
    """Import ``ir_passes`` and ``models``; raise ImportError for other distributions.

    The path is checked without executing the package; ``DISTRIBUTION`` detects overwritten files.
    """
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in SIBLINGS:
        expected = os.path.join(root, name, "__init__.py")
        loaded = sys.modules.get(name)
        spec = getattr(loaded, "__spec__", None) if loaded is not None else importlib.util.find_spec(name)
        path = spec.origin if spec else getattr(loaded, "__file__", None)
        if spec and not (path and os.path.exists(path)):
            path = next(iter(spec.submodule_search_locations or []), path)
        if path is None or os.path.dirname(os.path.realpath(path)) != os.path.dirname(expected):
            raise _foreign(name, path, expected, _reason(name, path, expected, loaded is not None))
        if getattr(importlib.import_module(name), "DISTRIBUTION", None) != "hybridlm":
            reason = "another distribution has overwritten this file (its DISTRIBUTION is not 'hybridlm')"
            raise _foreign(name, path, expected, reason)


def _reason(name: str, path: str | None, expected: str, loaded: bool) -> str:
    if loaded:
        return f"{name!r} was already imported before hybridlm"
    if path is None or not os.path.exists(expected):
        return "the installation of hybridlm is incomplete"
    folder = os.path.realpath(sys.path[0] or os.getcwd())
    if Path(os.path.realpath(path)).is_relative_to(folder):
        return f"the current directory or the script's folder, {folder}, comes first on sys.path"
    return "it comes before hybridlm on sys.path"
