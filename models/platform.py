"""The platform that steps are compiled for: the one place that asks JAX for it."""

import jax


def platform() -> str:
    """Return "cpu", "gpu" or "tpu": JAX's default backend."""
    return jax.default_backend()
