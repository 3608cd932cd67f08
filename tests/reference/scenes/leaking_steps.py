"""Steps of the engine that read the rows of another lane."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hybridlm.programs import programs
from hybridlm.steps.structure import Step


def plant_leak(patch: pytest.MonkeyPatch, name: str) -> str:
    """Make every lane of the steps that `programs` makes by this function see the state of its neighbour.

    Returns:
        File and line of the leak, as proofs name them.
    """
    right_step = getattr(programs, name)

    def leaking_step(*settings: Any) -> Step:
        right = right_step(*settings)

        def step(params, pools, inputs):
            swapped = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), pools)  # the leak
            return right(params, swapped, inputs)

        return step

    patch.setattr(programs, name, leaking_step)
    return f"{Path(__file__).name}:{leaking_step.__code__.co_firstlineno + 4}"
