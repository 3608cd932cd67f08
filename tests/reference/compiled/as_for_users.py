"""XLA's programs as users have them, where the other tests have it compile in less time (tests/conftest.py)."""

import os

import jax

OLDER = "--xla_cpu_use_fusion_emitters=false"


def compiled(lowered: jax.stages.Lowered, loops: bool = False) -> jax.stages.Compiled:
    """Compile with the same fusions and scatters as for users; the loops in them only with `loops`.

    Loops as for users multiply and add in one instruction, for instance.
    """
    older = OLDER in os.environ.get("XLA_FLAGS", "")
    options: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": True} if older else {}
    if loops:
        options["xla_backend_optimization_level"] = "3"
    return lowered.compile(compiler_options=options)
