"""JAX's persistent compilation cache, for the compilations of this library alone.

JAX has one cache for the process, in the folder that its setting names when it compiles for the first time. Here the
setting holds for a compilation and its thread, and JAX looks at it again before and after.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from ir_passes.jaxpr.jax_private import compilation_cache_dir, without_compilation_cache

STEPS = "steps"
"""Name of the folder, in that of a cache, of compiled steps with their certificates."""
NOWHERE = ""
"""In place of a folder, for `kept_in`: JAX keeps nothing and finds nothing."""
_free = threading.Condition()
_in_use: list[str] = []
"""The folder of the compilations that are running, once for each."""


class Cache(NamedTuple):
    """Where compiled steps are kept between processes.

    Attributes:
        setting: what JAX's setting is while steps are compiled; None for what it is anyway.
        folder: a local folder in which certificates and times can be kept beside them; None for none.
    """

    setting: str | None
    folder: Path | None


def cache_of(given: str | os.PathLike[str] | Literal[False] | None) -> Cache:
    """Return the cache that `load(compilation_cache=)` names; JAX's own setting stays as it is."""
    if given is False:
        return Cache(None, None)
    own = jax.config.values["jax_compilation_cache_dir"]
    if given is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        given = Path(home) / "hybridlm" / "xla" if own is None else own
    path = os.fspath(given)
    return Cache(None if path == own else path, None if "://" in path else Path(path))


@contextmanager
def kept_in(setting: str | None) -> Iterator[None]:
    """Keep programs that this thread compiles inside in a folder, and find those that are there.

    Compilations for one folder run at the same time, those for another one wait. What other threads compile with JAX
    meanwhile may be kept there too.

    Args:
        setting: of a `Cache`, or NOWHERE.
    """
    if setting is None:
        yield
        return
    with _free:
        _free.wait_for(lambda: not _in_use or _in_use[0] == setting)
        if not _in_use:
            reset_cache()
        _in_use.append(setting)
    try:
        with without_compilation_cache() if setting == NOWHERE else compilation_cache_dir(setting):
            yield
    finally:
        with _free:
            _in_use.pop()
            if not _in_use:
                reset_cache()
                _free.notify_all()
