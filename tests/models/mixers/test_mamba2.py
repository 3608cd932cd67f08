"""The Mamba2 layer: float64 equations, chunked equality, and every family variant."""

import numpy as np
import pytest
from filled import filled
from flax import nnx
from float64_mamba import mamba2
from mixer_lanes import check_equations, check_lengths, recurrence_lengths

from models.mixers.mamba2 import Mamba2, Mamba2Config

HIDDEN, KERNEL = 10, 4
LENGTHS = recurrence_lengths(KERNEL)
BASE = Mamba2Config(heads=6, head_size=5, groups=2, state_size=7, kernel=KERNEL, eps=1e-5)
CASES = {
    "gated norm in groups": BASE,
    "limits, no bias, one group": Mamba2Config(4, 6, 1, 5, 3, 1e-5, conv_bias=False, step_limits=(0.6, 0.9)),
    "norm before the gate": Mamba2Config(4, 3, 4, 5, 2, 1e-5, norm="normed"),
    "no norm, factors": Mamba2Config(4, 3, 2, 5, 4, 1e-5, norm="none", multipliers=(0.5, 1.5, 0.8, 1.2, 0.7)),
}


def layer(config: Mamba2Config) -> tuple[Mamba2, dict[str, np.ndarray]]:
    """A layer with random parameters, and these by their names in a checkpoint."""
    rng, weights = np.random.default_rng(config.heads), {}
    names = {"conv_bias": "conv1d.bias"}

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        scale = 0.5 if len(shape) == 1 else shape[-1] ** -0.5
        array = (rng.normal(size=shape) * scale + (name == "norm")).astype(np.float32)
        result = names.get(name, name if name in ("A_log", "dt_bias", "D") else f"{name}.weight")
        weights[result] = array.astype(np.float64)
        return array

    return filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), value), weights


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations_in_float64(name: str) -> None:
    config = CASES[name]
    mixer, weights = layer(config)
    sizes = config.groups, config.head_size, config.eps, config.step_limits, config.norm, config.multipliers

    def equations(x: np.ndarray) -> dict[str, np.ndarray]:
        expected = mamba2(x, weights, *sizes)
        return {"out": expected.hidden, "recurrent": expected.recurrent, "conv": expected.conv}

    check_equations(mixer, HIDDEN, equations)


def test_chunks_equal_single_tokens_at_every_length() -> None:
    check_lengths(layer(BASE)[0], HIDDEN, LENGTHS, 1e-4, {"recurrent": 5e-5, "conv": 1e-6})
