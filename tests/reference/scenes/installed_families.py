"""Families of packages that a test installs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from models.families import registry


@contextmanager
def families_as_installed() -> Iterator[None]:
    """Read the entry points of families anew, and forget what was registered meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", {})
        registry._read_entry_points.cache_clear()
        yield
    registry._read_entry_points.cache_clear()
