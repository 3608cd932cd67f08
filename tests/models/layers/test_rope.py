"""RoPE against float64, at near and far positions, on the first dimensions of a head."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.families import ConfigReader, read_rope
from models.layers.rope import Rope

LAST = 262143
run = jax.jit(Rope.__call__, static_argnums=0)


def float64_rope(x: np.ndarray, positions: np.ndarray, size: int, theta: float) -> np.ndarray:
    """Dimension i turns with dimension i + size / 2 by `position * theta^(-2i/size)`."""
    result = x.astype(np.float64)
    for i in range(size // 2):
        angle = positions.astype(np.float64)[..., None] * theta ** (-2 * i / size)
        a, b = x[..., i].astype(np.float64), x[..., i + size // 2].astype(np.float64)
        result[..., i] = a * np.cos(angle) - b * np.sin(angle)
        result[..., i + size // 2] = b * np.cos(angle) + a * np.sin(angle)
    return result


def rotate(rope: Rope, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.asarray(run(rope, jnp.asarray(x, jnp.float32), jnp.asarray(positions, jnp.int32)))


@pytest.mark.parametrize(("head", "size", "theta"), [(16, 4, 1e4), (32, 16, 1e6), (8, 8, 1e4), (256, 64, 1e7)])
@pytest.mark.parametrize(
    ("positions", "tolerance"), [([0, 1, 2], 1e-6), ([60, 511, 1000], 1e-4), ([LAST - 2, LAST - 1, LAST], 3e-2)]
)
def test_as_float64(head: int, size: int, theta: float, positions: list[int], tolerance: float) -> None:
    """Float32 rounding of position times frequency bounds the error, as in transformers."""
    rng = np.random.default_rng(size)
    x = rng.normal(size=(2, 3, 2, head)).astype(np.float32)
    index = np.array([positions, positions[::-1]])
    want = float64_rope(x, index, size, theta)
    np.testing.assert_allclose(rotate(Rope(size, theta), x, index), want, rtol=0, atol=tolerance * np.abs(x).max())


def test_far_angles_are_the_float32_products_of_position_and_frequency() -> None:
    """All float32 implementations share one rounding; the rest is exact to few bits."""
    size, theta = 64, 1e7
    frequency = (1.0 / theta ** (np.arange(32, dtype=np.float32) / 32)).astype(np.float32)
    for position in (LAST, LAST - 4096, 131071):
        angle = (np.float32(position) * frequency).astype(np.float64)
        x = np.zeros((1, 1, 1, size), np.float32)
        x[..., : size // 2] = 1
        got = rotate(Rope(size, theta), x, np.array([[position]]))[0, 0, 0]
        np.testing.assert_allclose(got, np.concatenate([np.cos(angle), np.sin(angle)]), rtol=0, atol=3e-6)


def test_dimensions_behind_the_rotated_ones_keep_their_bits() -> None:
    x = np.random.default_rng(0).normal(size=(1, 4, 2, 16)).astype(np.float32)
    got = rotate(Rope(4, 1e4), x, np.array([[0, 7, 4096, LAST]]))
    assert got[..., 4:].tobytes() == x[..., 4:].tobytes()
    assert (got[:, 1:, :, :4] != x[:, 1:, :, :4]).all()
    assert got[:, 0].tobytes() == x[:, 0].tobytes()


def test_scores_depend_on_distances_alone() -> None:
    rng = np.random.default_rng(1)
    query, key = rng.normal(size=(2, 1, 1, 1, 32)).astype(np.float32)
    rope = Rope(16, 1e4)

    def score(at_query: int, at_key: int) -> float:
        q, k = (rotate(rope, x, np.array([[index]])) for x, index in ((query, at_query), (key, at_key)))
        return float(np.sum(q * k))

    assert score(5, 3) == pytest.approx(score(1005, 1003), abs=1e-3)
    assert abs(score(5, 3) - score(5, 4)) > 1e-2


def test_every_lane_has_its_own_positions() -> None:
    x = np.random.default_rng(2).normal(size=(1, 3, 1, 8)).astype(np.float32)
    pair = rotate(Rope(8, 1e4), np.concatenate([x, x]), np.array([[0, 1, 2], [100, 101, 102]]))
    assert pair[0].tobytes() == rotate(Rope(8, 1e4), x, np.array([[0, 1, 2]]))[0].tobytes()
    assert pair[1].tobytes() == rotate(Rope(8, 1e4), x, np.array([[100, 101, 102]]))[0].tobytes()


def test_gradients_are_the_rotation_back() -> None:
    """The rotation is orthogonal: pulling y back gives x."""
    rope, index = Rope(8, 1e4), jnp.array([[3, 1000]], jnp.int32)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(1, 2, 1, 12)), jnp.float32)
    y, pull = jax.vjp(lambda x: run(rope, x, index), x)
    np.testing.assert_allclose(pull(y)[0], x, atol=1e-5)


def test_old_and_new_fields_are_the_same_rope() -> None:
    def read(fields: dict[str, Any]) -> tuple[Rope, tuple[str, ...]]:
        reader = ConfigReader("any", fields)
        return read_rope(reader, 16, 1e4, 0.25, 32768), reader.close()

    old = {"rope_theta": 5e6, "partial_rotary_factor": 0.5}
    sections = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    spellings: list[dict[str, Any]] = [
        {"rope_parameters": {"rope_type": "default"} | old},
        {"rope_parameters": sections | {"type": "default", "rope_theta": 5000000, "partial_rotary_factor": 0.5}},
        # Newer fields win over those that a converter left behind.
        old | {"rope_theta": 1.0, "rope_parameters": {"rope_theta": 5e6}},
        old,
        old | {"rope_scaling": None},
        old | {"rope_scaling": sections | {"type": "mrope"}},
        old | {"rope_scaling": sections | {"rope_type": "default", "type": "default"}},
    ]
    for fields in spellings:
        assert read(fields) == (Rope(8, 5e6), ())
    assert read({}) == (Rope(4, 1e4), ())
