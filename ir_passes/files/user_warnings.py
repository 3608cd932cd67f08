"""Warnings that point at the user's line."""

import sys
import warnings

PACKAGES = frozenset({"hybridlm", "ir_passes", "models", "jax", "contextlib", "functools"})
"""Packages and modules with frames between the user's call and a warning."""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the innermost caller outside `PACKAGES`.

    Args:
        category: class of the warning; users filter by it.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
