"""JAX's persistent compilation cache, for this library's compilations alone.

JAX reads its setting once per process; here it holds for one compilation and thread.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from ir_passes.files.trust import UntrustedError, make_own_folder, open_own_folder
from ir_passes.jaxpr.jax_private import compilation_cache_dir, without_compilation_cache

_log = logging.getLogger("hybridlm")

STEPS = "steps"
"""Subfolder for compiled steps with certificates."""
NOWHERE = ""
"""Setting that turns JAX's compilation cache off."""
_free = threading.Condition()
_in_use: list[str] = []


def is_cache(setting: Any) -> bool:
    return setting is None or setting is False or (isinstance(setting, str | os.PathLike) and setting != "")


def cache_of(path: str | os.PathLike[str] | Literal[False] | None) -> tuple[str | None, Path | None]:
    """Return JAX's setting and the folder of compiled steps, for `load(compilation_cache=)`.

    A setting of None leaves JAX's own. Without a home directory there is a warning and no folder.
    """
    if path is False:
        return None, None
    jax_setting: str | None = jax.config.values["jax_compilation_cache_dir"]
    chosen = jax_setting if path is None else os.fspath(path)
    if chosen is None:
        try:
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        except RuntimeError as error:
            _warn_once(f"compiled steps are not kept: {error} Give compilation_cache or set XDG_CACHE_HOME")
            return None, None
        chosen = str(home / "hybridlm" / "xla")
    return None if chosen == jax_setting else chosen, None if "://" in chosen else Path(chosen)


@cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


def _own_or_nowhere(setting: str | None) -> str | None:
    """Return a setting, or NOWHERE for a folder that others can write."""
    folder = setting or jax.config.values["jax_compilation_cache_dir"]
    if folder is None or "://" in folder:
        return setting
    try:
        make_own_folder(Path(folder))
        os.close(open_own_folder(Path(folder)))
    except UntrustedError as error:
        _warn_once(f"{folder}: JAX's compilation cache is not used: {error}")
        return NOWHERE
    except OSError:  # JAX warns of a folder that it cannot use
        pass
    return setting


@contextmanager
def use_cache(setting: str | None) -> Iterator[None]:
    """Read and write programs that this thread compiles in a folder.

    Compilations for one folder run concurrently, others wait.
    """
    setting = _own_or_nowhere(setting)
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
