"""XLA's programs for users, where other tests compile faster ones (tests/conftest.py)."""

import os

import jax

OLDER = "--xla_cpu_use_fusion_emitters=false"


def compiled(lowered: jax.stages.Lowered, loops: bool = False) -> jax.stages.Compiled:
    """Compile with users' fusions and scatters; with `loops` also their loops.

    Loops as for users multiply and add in one instruction, for instance.
    """
    older = OLDER in os.environ.get("XLA_FLAGS", "")
    options: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": True} if older else {}
    if loops:
        options["xla_backend_optimization_level"] = "3"
    return lowered.compile(compiler_options=options)
