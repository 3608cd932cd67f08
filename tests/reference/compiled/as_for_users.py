"""XLA's programs as users have them, where the other tests have it compile in less time (tests/conftest.py)."""

import os

import jax

OLDER = "--xla_cpu_use_fusion_emitters=false"


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile with the same fusions and scatters as for users; the loops in them stay as the tests have them."""
    older = OLDER in os.environ.get("XLA_FLAGS", "")
    return lowered.compile(compiler_options={"xla_cpu_use_fusion_emitters": True} if older else None)
