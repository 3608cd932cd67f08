"""Settings of JAX for a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache


@contextmanager
def jax_settings(**values: Any) -> Iterator[None]:
    """Change settings for a while; the compilation cache opens anew with them, and again afterwards."""
    initial = {name: jax.config.values[name] for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        reset_cache()
        yield
    finally:
        for name, value in initial.items():
            jax.config.update(name, value)
        reset_cache()
