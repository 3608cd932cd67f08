"""The Mamba layer (S6): float64 equations and chunked equality."""

import numpy as np
import pytest
from filled import filled
from flax import nnx
from mixer_lanes import check_equations, check_lengths

from models.mixers.mamba1 import Mamba1, Mamba1Config

HIDDEN, KERNEL = 10, 4
CASES = {
    "no norms": Mamba1Config(12, 5, 3, KERNEL),
    "plain norms, no bias": Mamba1Config(8, 3, 2, 3, conv_bias=False, norms="plain"),
    "weighted norms": Mamba1Config(10, 4, 3, KERNEL, norms="weighted", eps=1e-5),
}


def layer(config: Mamba1Config) -> tuple[Mamba1, dict[str, np.ndarray]]:
    """Return a layer with random parameters, and these parameters in float64 by name."""
    rng, parameters = np.random.default_rng(config.width), {}

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = rng.normal(size=shape) * (0.5 if len(shape) == 1 or name == "A_log" else shape[-1] ** -0.5)
        parameters[name] = (array + name.endswith("_norm")).astype(np.float32)
        return parameters[name]

    built = filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), value)
    return built, {name: array.astype(np.float64) for name, array in parameters.items()}


def mamba1(x: np.ndarray, p: dict[str, np.ndarray], config: Mamba1Config) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs [T, H] and the last state [width, state], token by token from zero."""

    silu = lambda x: x / (1 + np.exp(-x))

    def normed(part: np.ndarray, name: str) -> np.ndarray:
        if config.norms == "none":
            return part
        return part / np.sqrt((part * part).mean(-1, keepdims=True) + config.eps) * p.get(name, 1.0)

    mixed, gate = np.split(x @ p["in_proj"].T, 2, axis=-1)
    padded = np.concatenate([np.zeros((config.kernel - 1, config.width)), mixed])
    taps = p["conv1d"][:, 0]
    summed = np.sum([padded[tap : tap + len(x)] * taps[:, tap] for tap in range(config.kernel)], axis=0)
    u = silu(summed + p.get("conv_bias", 0.0))
    step, b, c = np.split(u @ p["x_proj"].T, np.cumsum(config.parts)[:2], axis=-1)
    step, b, c = normed(step, "dt_norm"), normed(b, "b_norm"), normed(c, "c_norm")
    step = np.logaddexp(0.0, step @ p["dt_proj"].T + p["dt_bias"])
    state, y = np.zeros((config.width, config.state_size)), np.zeros((len(x), config.width))
    for t in range(len(x)):
        state = np.exp(-np.exp(p["A_log"]) * step[t][:, None]) * state + np.outer(step[t] * u[t], b[t])
        y[t] = state @ c[t] + p["D"] * u[t]
    return (y * silu(gate)) @ p["out_proj"].T, state


@pytest.mark.parametrize("name", CASES)
def test_mamba1_equals_its_equations(name: str) -> None:
    mixer, parameters = layer(CASES[name])
    check_equations(
        mixer, HIDDEN, lambda x: dict(zip(("out", "recurrent"), mamba1(x, parameters, CASES[name]), strict=True))
    )


def test_mamba1_tokens_at_once_equal_single_tokens() -> None:
    mixer, _ = layer(CASES["weighted norms"])
    check_lengths(mixer, HIDDEN, (1, KERNEL - 1, KERNEL, 37), 2e-5, {"recurrent": 2e-5, "conv": 1e-6})
